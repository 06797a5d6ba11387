// The conversion kernel: each thread writes two neighbouring pixels. `scripts/build-ptx` compiles it to pixels.ptx,
// which is checked in and embedded in the extension, so that building needs no CUDA toolkit.
#include "pixels.h"

extern "C" __global__ void telecine_convert(telecine::Conversion conversion) {
    const int x = 2 * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int y = static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y);
    if (x < conversion.width && y < conversion.height) {
        telecine::convert_pair(conversion, x, y);
    }
}
