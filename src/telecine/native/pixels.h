// The arithmetic of one output pixel, from a decoded surface to packed RGB. Compiled by nvcc and by a C++ compiler.
//
// It follows FFmpeg's libswscale for `scale=W:H:flags=...,format=rgb24`, which is integer arithmetic: each plane is
// filtered separately (15-bit intermediates horizontally, then 12-bit weights vertically), and the conversion to RGB
// uses 8-bit luma and chroma. All roundings are the same here, so that GPU and CPU frames agree; a "more exact"
// conversion would differ by up to 4. See libswscale's output.c, utils.c and yuv2rgb.c.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TELECINE_INLINE __host__ __device__ inline
// No unrolling: the driver compiles the PTX at first use, and unrolled code compiles longer than a short clip decodes.
#define TELECINE_LOOP _Pragma("unroll 1")
#else
#define TELECINE_INLINE inline
#define TELECINE_LOOP
#endif

namespace telecine {

// A polyphase filter: output i is the sum of weight[i * count + j] * input[start[i] + j].
struct Taps {
    const int32_t* start;
    const int16_t* weight;
    int32_t count;
};

// Maps coordinates of the rotated picture to the stored one: column = c0 + cx * x + cy * y, row = r0 + rx * x + ry * y.
struct CoordinateMap {
    int32_t c0, cx, cy, r0, rx, ry;
};

struct Plane {
    uint64_t address;
    int32_t pitch;  // bytes from row to row
    int32_t step;   // samples from column to column: 2 if two chroma planes are interleaved
    CoordinateMap map;
};

// How the intermediates of a column are combined and rounded.
enum VerticalMode : int32_t { kManyTaps = 0, kTwoTaps = 1 };

struct Colour {
    int32_t luma, offset;                                     // Q16 scale of luma; its black level
    int32_t red_v, green_u, green_v, blue_u;                  // Q16
    int32_t red_step, green_u_step, green_v_step, blue_step;  // the same in units of `luma`, Q16; see table_offset()
};

// The arguments of one kernel launch, passed by value.
struct Conversion {
    Plane planes[3];
    int32_t wide;    // 1: 16-bit samples; the used bits are the upper ones
    int32_t depth;   // bits used
    int32_t direct;  // 1: same size, 8 bits: each chroma sample is used for its block, as in libswscale's fast path
    int32_t chroma_shift_x, chroma_shift_y;  // of the source, after rotation; direct only
    int32_t full_chroma;                     // 0: two neighbouring pixels share chroma
    int32_t full_range;
    int32_t vertical_mode;
    Taps luma_across, luma_down, chroma_across, chroma_down;
    Colour colour;
    uint64_t out;
    int64_t out_pitch;
    int32_t width, height;
};

TELECINE_INLINE int clip_byte(int value) {
    return value < 0 ? 0 : value > 255 ? 255 : value;
}

TELECINE_INLINE int sample(const Conversion& c, int plane, int x, int y) {
    const Plane& p = c.planes[plane];
    const int column = p.map.c0 + p.map.cx * x + p.map.cy * y;
    const int row = p.map.r0 + p.map.rx * x + p.map.ry * y;
    const uint8_t* line = reinterpret_cast<const uint8_t*>(p.address) + static_cast<int64_t>(row) * p.pitch;
    if (c.wide) {
        return reinterpret_cast<const uint16_t*>(line)[column * p.step] >> (16 - c.depth);
    }
    return line[column * p.step];
}

// Returns one 15-bit intermediate of a row, filtered horizontally.
TELECINE_INLINE int filter_across(const Conversion& c, int plane, const Taps& taps, int x, int y) {
    const int16_t* weight = taps.weight + x * taps.count;
    const int start = taps.start[x];
    int sum = 0;
    TELECINE_LOOP
    for (int j = 0; j < taps.count; ++j) {
        sum += weight[j] * sample(c, plane, start + j, y);
    }
    sum >>= c.depth - 1;
    return sum > 32767 ? 32767 : sum;
}

// Returns the vertically filtered intermediates of a column, before the final rounding.
TELECINE_INLINE int filter_down(const Conversion& c, int plane, const Taps& across, const Taps& down, int x, int y) {
    const int16_t* weight = down.weight + y * down.count;
    const int start = down.start[y];
    int sum = 0;
    TELECINE_LOOP
    for (int j = 0; j < down.count; ++j) {
        if (weight[j] != 0) {
            sum += weight[j] * filter_across(c, plane, across, x, start + j);
        }
    }
    return sum;
}

// Returns 8 bits of a filtered sum. If both filters have two taps, libswscale uses a function that does not round.
TELECINE_INLINE int narrow(const Conversion& c, int sum) {
    return (c.vertical_mode == kTwoTaps ? sum : sum + (1 << 18)) >> 19;
}

// The same with 9 more bits, for full-resolution chroma; `bias` is the value that means zero.
TELECINE_INLINE int widen(const Conversion& c, int sum, int bias) {
    return ((c.vertical_mode == kTwoTaps ? sum : sum + (1 << 9)) - (bias << 19)) >> 10;
}

TELECINE_INLINE void store(uint8_t* out, int r, int g, int b) {
    out[0] = static_cast<uint8_t>(r);
    out[1] = static_cast<uint8_t>(g);
    out[2] = static_cast<uint8_t>(b);
}

TELECINE_INLINE int rounded16(int64_t value) {
    return static_cast<int>((value + 0x8000) >> 16);
}

// libswscale's fast path: 16-bit multiplications, of which the upper half is kept.
TELECINE_INLINE void write_direct(const Conversion& c, uint8_t* out, int y, int u, int v) {
    const int luma = (((y - c.colour.offset) * 8) * rounded16(static_cast<int64_t>(c.colour.luma) << 13)) >> 16;
    const int du = (u - 128) * 8;
    const int dv = (v - 128) * 8;
    const int red = (dv * rounded16(static_cast<int64_t>(c.colour.red_v) << 13)) >> 16;
    const int green = ((du * rounded16(static_cast<int64_t>(c.colour.green_u) << 13)) >> 16) +
                      ((dv * rounded16(static_cast<int64_t>(c.colour.green_v) << 13)) >> 16);
    const int blue = (du * rounded16(static_cast<int64_t>(c.colour.blue_u) << 13)) >> 16;
    store(out, clip_byte(luma + red), clip_byte(luma + green), clip_byte(luma + blue));
}

// Returns the contribution of a chroma sample in whole steps of luma: an offset into libswscale's luma table.
TELECINE_INLINE int table_offset(int64_t step, int chroma) {
    return static_cast<int>((step * clip_byte(chroma)) >> 16) - static_cast<int>(step >> 9);
}

TELECINE_INLINE int table_value(const Conversion& c, int index) {
    const int64_t black = c.full_range ? 384 : 400;
    const int64_t origin = c.full_range ? 384 : 326;
    return clip_byte(static_cast<int>(((index + origin) * c.colour.luma - (black << 16) + 0x8000) >> 16));
}

// libswscale's table path, for a pair of pixels that share chroma.
TELECINE_INLINE void write_pair(const Conversion& c, uint8_t* out, int x, int y, int count) {
    const int u = narrow(c, filter_down(c, 1, c.chroma_across, c.chroma_down, x >> 1, y));
    const int v = narrow(c, filter_down(c, 2, c.chroma_across, c.chroma_down, x >> 1, y));
    const int red = table_offset(c.colour.red_step, v);
    const int blue = table_offset(c.colour.blue_step, u);
    const int green = table_offset(c.colour.green_u_step, u) + table_offset(c.colour.green_v_step, v);
    TELECINE_LOOP
    for (int i = 0; i < count; ++i) {
        const int luma = narrow(c, filter_down(c, 0, c.luma_across, c.luma_down, x + i, y));
        store(out + 3 * i, table_value(c, luma + red), table_value(c, luma + green), table_value(c, luma + blue));
    }
}

TELECINE_INLINE int clip30(int64_t value) {
    return static_cast<int>((value < 0 ? 0 : value > 0x3FFFFFFF ? 0x3FFFFFFF : value) >> 22);
}

// libswscale's path for chroma at full resolution.
TELECINE_INLINE void write_full(const Conversion& c, uint8_t* out, int x, int y) {
    const int64_t u = widen(c, filter_down(c, 1, c.chroma_across, c.chroma_down, x, y), 128);
    const int64_t v = widen(c, filter_down(c, 2, c.chroma_across, c.chroma_down, x, y), 128);
    int64_t luma = widen(c, filter_down(c, 0, c.luma_across, c.luma_down, x, y), 0);
    luma = (luma - (c.colour.offset << 9)) * rounded16(static_cast<int64_t>(c.colour.luma) << 13) + (1 << 21);
    store(out, clip30(luma + v * rounded16(static_cast<int64_t>(c.colour.red_v) << 13)),
          clip30(luma + v * rounded16(static_cast<int64_t>(c.colour.green_v) << 13) +
                 u * rounded16(static_cast<int64_t>(c.colour.green_u) << 13)),
          clip30(luma + u * rounded16(static_cast<int64_t>(c.colour.blue_u) << 13)));
}

// Writes pixels x and x + 1, if that exists, of row y.
TELECINE_INLINE void convert_pair(const Conversion& c, int x, int y) {
    uint8_t* out = reinterpret_cast<uint8_t*>(c.out) + y * c.out_pitch + 3 * static_cast<int64_t>(x);
    const int count = x + 1 < c.width ? 2 : 1;
    if (!c.direct && !c.full_chroma) {
        write_pair(c, out, x, y, count);
        return;
    }
    TELECINE_LOOP
    for (int i = 0; i < count; ++i) {
        if (c.direct) {
            const int cx = (x + i) >> c.chroma_shift_x;
            const int cy = y >> c.chroma_shift_y;
            write_direct(c, out + 3 * i, sample(c, 0, x + i, y), sample(c, 1, cx, cy), sample(c, 2, cx, cy));
        } else {
            write_full(c, out + 3 * i, x + i, y);
        }
    }
}

static_assert(sizeof(Conversion) == 312, "the kernel and the host must agree on the layout");

}  // namespace telecine
