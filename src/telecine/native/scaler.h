// Plans the conversion of a surface: filter tables, walks, colour constants. Pure; runs on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "pixels.h"

namespace telecine {

struct FilterTable {
    int count = 1;
    std::vector<int32_t> start;
    std::vector<int16_t> weight;
};

enum class Kernel { Bilinear, Bicubic };

// libswscale's filter for one axis: `one` is the sum of the weights; positions are in 1/128 of a sample.
FilterTable make_filter(int source, int target, Kernel kernel, int source_position, int target_position, int one,
                        bool even_count);

// How a frame is to look; the same for all frames of a request.
struct Geometry {
    int width = 0, height = 0;  // of the output
    int quarter_turns = 0;      // clockwise
    bool mirrored = false;      // left to right, after turning
    int matrix = 2;             // ITU-T H.273 code
    bool full_range = false;
    bool bicubic = true;  // the filter: bicubic where the request does not resize, else bilinear
};

// What was decoded: a mapped surface and the part of it that is the picture.
struct Surface {
    uint64_t address = 0;
    int pitch = 0;
    int rows = 0;  // of the luma plane; chroma follows it
    int left = 0, top = 0, width = 0, height = 0;
    int depth = 8;
    int chroma_shift_x = 1, chroma_shift_y = 1;
    bool interleaved = true;  // chroma planes
};

// The filter tables of one source size and geometry, for Conversion's four Taps in order.
struct ScalePlan {
    bool direct = false;
    bool full_chroma = false;
    VerticalMode vertical_mode = kManyTaps;
    FilterTable tables[4];
};

ScalePlan plan_scale(const Surface& surface, const Geometry& geometry);

// All of a Conversion except its output and its Taps.
Conversion begin_conversion(const Surface& surface, const Geometry& geometry, const ScalePlan& plan);

}  // namespace telecine
