"""Print the shapes of the inputs of a transformers model: tokens and pixels, with the true time of every frame.

python examples/transformers_inputs.py VIDEO "What happens here?" Qwen/Qwen3-VL-2B-Instruct
"""

import sys

from transformers import AutoProcessor

import telecine


def main(video: str, question: str, model: str) -> None:
    frames = telecine.load(video, policy="qwen3_vl")  # the frames that this model was trained to see
    pixels, metadata = frames.for_processor()
    processor = AutoProcessor.from_pretrained(model)
    content = [{"type": "video"}, {"type": "text", "text": question}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = processor(
        text=[text],
        videos=[pixels],
        video_metadata=[metadata],
        do_sample_frames=False,  # the frames are sampled already
        return_tensors="pt",
    )
    for name, value in inputs.items():
        print(name, list(value.shape))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python examples/transformers_inputs.py VIDEO QUESTION MODEL")
    main(*sys.argv[1:])
