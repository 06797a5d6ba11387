"""Load eight frames of a video as a NumPy array, and print the index and the time of each.

python examples/frames_to_numpy.py VIDEO
"""

import sys

import telecine


def main(video: str) -> None:
    frames = telecine.load(video, num_frames=8, size=224)  # 224 pixels on the short side
    images = frames.numpy()  # uint8 [8, height, width, 3], RGB
    print(f"{images.dtype} {list(images.shape)}, mean {images.mean():.1f}")
    for frame in frames:
        print(f"frame {frame.index} at {frame.timestamp:.3f} s: mean {frame.image.mean():.1f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/frames_to_numpy.py VIDEO")
    main(sys.argv[1])
