// Plans the conversion of a surface: filter tables, coordinate maps, colour constants. Pure functions on the host.
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

enum class Interpolation { Bilinear, Bicubic };

// Returns libswscale's filter for one axis. `one` is the sum of the weights; positions are in 1/128 of a sample.
FilterTable make_filter(int source, int target, Interpolation kernel, int source_position, int target_position, int one,
                        bool even_count);

// The geometry and colour of the output frames of a request.
struct Geometry {
    int width = 0, height = 0;  // of the output, pixels
    int quarter_turns = 0;      // clockwise
    bool mirrored = false;      // left to right, after the rotation
    int matrix = 2;             // ITU-T H.273 code
    bool full_range = false;
    bool bicubic = true;  // true if the request does not resize; else bilinear
};

// A decoded picture: a mapped surface and the area of the picture in it.
struct Surface {
    uint64_t address = 0;
    int pitch = 0;
    int rows = 0;  // of the luma plane; chroma follows
    int left = 0, top = 0, width = 0, height = 0;
    int depth = 8;
    int chroma_shift_x = 1, chroma_shift_y = 1;
    bool interleaved = true;  // true if the two chroma planes are interleaved
};

// The filter tables of one source size and geometry, in the order of Conversion's four Taps.
struct ScalePlan {
    bool direct = false;
    bool full_chroma = false;
    VerticalMode vertical_mode = kManyTaps;
    FilterTable tables[4];
};

ScalePlan plan_scale(const Surface& surface, const Geometry& geometry);

// Returns a Conversion without its output and its Taps.
Conversion begin_conversion(const Surface& surface, const Geometry& geometry, const ScalePlan& plan);

}  // namespace telecine
