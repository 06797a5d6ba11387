#!/usr/bin/env bash
# A vLLM server that decodes with telecine, and a request to it.
#   examples/serve_vllm.sh serve [MODEL]      in the environment of vLLM, where telecine[vllm] is installed
#   examples/serve_vllm.sh ask VIDEO [WORDS]  VIDEO is a path below the folder from which the server was started
set -euo pipefail
port=${PORT:-8000}
[[ ${1:-} == ask && -z ${2:-} ]] && set -- usage
case ${1:-} in
serve)
    telecine doctor --vllm
    # the codec keeps the model's own choice of frames; "fit" decodes at the size that its processor makes;
    # the connector maps local files, which the server may read below this folder only
    export VLLM_MEDIA_CONNECTOR=telecine
    exec vllm serve "${2:-Qwen/Qwen3-VL-2B-Instruct}" --port "$port" --allowed-local-media-path "$PWD" \
        --media-io-kwargs '{"video": {"backend": "telecine", "fit": "auto"}}'
    ;;
ask)
    python3 - "$port" "$(realpath -- "$2")" "${3:-What happens in this video?}" <<'END'
import json, pathlib, sys, urllib.request

port, path, words = sys.argv[1:]
video = {"type": "video_url", "video_url": {"url": pathlib.Path(path).as_uri()}}
body = {"messages": [{"role": "user", "content": [video, {"type": "text", "text": words}]}]}
request = urllib.request.Request(
    f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
)
with urllib.request.urlopen(request) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
END
    ;;
*)
    sed -n '2,4p' "$0" >&2
    exit 2
    ;;
esac
