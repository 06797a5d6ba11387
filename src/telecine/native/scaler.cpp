#include "scaler.h"

#include <algorithm>
#include <cstdlib>

namespace telecine {
namespace {

constexpr double kCutOff = 0.002;  // sum of the weights that may be dropped at each end of a filter

int floor_log2(int value) {
    int result = 0;
    while (value > 1) {
        value >>= 1;
        ++result;
    }
    return result;
}

// Returns the weight at distance `d` (Q30, in filter units), where `unit` is 1.0.
int64_t kernel_weight(Interpolation kernel, int64_t d, int64_t unit) {
    if (kernel == Interpolation::Bilinear) {
        return std::max<int64_t>(0, (1LL << 30) - d) * (unit >> 30);
    }
    const int64_t sharpness = static_cast<int64_t>(0.6 * (1 << 24));
    if (d >= 1LL << 31) {
        return 0;
    }
    const int64_t dd = (d * d) >> 30;
    const int64_t ddd = (dd * d) >> 30;
    int64_t weight;
    if (d < 1LL << 30) {
        weight = (12 * (1LL << 24) - 6 * sharpness) * ddd + (-18 * (1LL << 24) + 6 * sharpness) * dd + (6LL << 54);
    } else {
        weight = -6 * sharpness * ddd + 30 * sharpness * dd - 48 * sharpness * d + 24 * sharpness * (1LL << 30);
    }
    return weight / ((1LL << 54) / unit);
}

struct UnroundedFilter {
    int count;
    std::vector<int64_t> start;
    std::vector<int64_t> weight;
};

// Returns the filter before small weights are dropped and weights are rounded.
UnroundedFilter sample_kernel(int source, int target, Interpolation kernel, int source_position, int target_position,
                              int64_t increment, int64_t unit) {
    const int spread = kernel == Interpolation::Bicubic ? 4 : 2;
    int count = increment <= 1 << 16 ? 1 + spread : 1 + (spread * source + target - 1) / target;
    count = std::max(1, std::min(count, source - 2));
    UnroundedFilter wide = {count, std::vector<int64_t>(target),
                            std::vector<int64_t>(static_cast<size_t>(target) * count)};
    int64_t centre = ((target_position * increment) >> 7) - ((source_position * 0x10000LL) >> 7);
    for (int i = 0; i < target; ++i, centre += 2 * increment) {
        const int64_t first = (centre - (count - 2) * (1LL << 16)) / (1 << 17);
        wide.start[i] = first;
        for (int j = 0; j < count; ++j) {
            int64_t d = std::llabs((first + j) * (1LL << 17) - centre) << 13;
            if (increment > 1 << 16) {
                d = d * target / source;
            }
            wide.weight[static_cast<size_t>(i) * count + j] = kernel_weight(kernel, d, unit);
        }
    }
    return wide;
}

// Drops small weights at the left of each filter, and returns the number of weights that the longest one needs.
int drop_small_weights(UnroundedFilter& wide, int target, int64_t unit) {
    const double limit = kCutOff * static_cast<double>(unit);
    int needed = 0;
    for (int i = target - 1; i >= 0; --i) {
        int64_t* weight = &wide.weight[static_cast<size_t>(i) * wide.count];
        int64_t dropped = 0;
        for (int j = 0; j < wide.count; ++j) {
            dropped += std::llabs(weight[0]);
            // positions must not decrease
            if (static_cast<double>(dropped) > limit || (i < target - 1 && wide.start[i] >= wide.start[i + 1])) {
                break;
            }
            std::copy(weight + 1, weight + wide.count, weight);
            weight[wide.count - 1] = 0;
            ++wide.start[i];
        }
        int used = wide.count;
        dropped = 0;
        for (int j = wide.count - 1; j > 0; --j) {
            dropped += std::llabs(weight[j]);
            if (static_cast<double>(dropped) > limit) {
                break;
            }
            --used;
        }
        needed = std::max(needed, used);
    }
    return needed;
}

// Moves weights outside of the source to its border sample.
void fold_outside_weights(std::vector<int64_t>& weight, int64_t& start, int source) {
    const int count = static_cast<int>(weight.size());
    std::vector<int64_t> folded(weight.size());
    const int64_t inside = std::max<int64_t>(0, std::min<int64_t>(start, source - count));
    for (int j = 0; j < count; ++j) {
        const int64_t at = std::max<int64_t>(0, std::min<int64_t>(start + j, source - 1));
        folded[static_cast<size_t>(std::max<int64_t>(0, std::min<int64_t>(at - inside, count - 1)))] += weight[j];
    }
    weight = folded;
    start = inside;
}

int64_t divide_rounded(int64_t value, int64_t by) {
    return (value >= 0 ? value + by / 2 : value - by / 2) / by;
}

}  // namespace

FilterTable make_filter(int source, int target, Interpolation kernel, int source_position, int target_position, int one,
                        bool even_count) {
    const int64_t increment = ((static_cast<int64_t>(source) << 16) + (target >> 1)) / target;
    FilterTable table;
    table.start.resize(target);
    if (std::llabs(increment - 0x10000) < 10 && source_position == target_position) {
        table.weight.assign(target, static_cast<int16_t>(one));
        for (int i = 0; i < target; ++i) {
            table.start[i] = std::min(i, source - 1);
        }
        return table;
    }
    const int64_t unit = 1LL << (54 - std::min(floor_log2(std::max(1, source / target)), 8));
    UnroundedFilter wide = sample_kernel(source, target, kernel, source_position, target_position, increment, unit);
    int count = drop_small_weights(wide, target, unit);
    if (even_count && count > 1) {
        count = (count + 1) & ~1;
    }
    // if the source is narrower than the filter, use all its samples
    const int stored = std::min(count, source);
    table.count = stored;
    table.weight.resize(static_cast<size_t>(target) * stored);
    for (int i = 0; i < target; ++i) {
        std::vector<int64_t> weight(count);
        for (int j = 0; j < std::min(count, wide.count); ++j) {
            weight[j] = wide.weight[static_cast<size_t>(i) * wide.count + j];
        }
        fold_outside_weights(weight, wide.start[i], source);
        table.start[i] = static_cast<int32_t>(wide.start[i]);
        int64_t sum = 0;
        for (int64_t w : weight) {
            sum += w;
        }
        sum = std::max<int64_t>(1, (sum + one / 2) / one);
        // add the rounding error of a weight to the next, so that the sum is `one`
        int64_t error = 0;
        for (int j = 0; j < stored; ++j) {
            const int64_t value = weight[j] + error;
            const int64_t rounded = divide_rounded(value, sum);
            table.weight[static_cast<size_t>(i) * stored + j] = static_cast<int16_t>(rounded);
            error = value - rounded * sum;
        }
    }
    return table;
}

namespace {

// Position of the samples of a plane, in 1/128 sample. Chroma counts as centred between its luma samples, whatever the
// stream's tag says: FFmpeg's filter chain ignores the tag, too.
constexpr int kCentred = 128;

int ceil_shift(int value, int shift) {
    return -((-value) >> shift);
}

CoordinateMap make_coordinate_map(int left, int top, int width, int height, int turns, bool mirrored) {
    // maps (x, y) of the rotated picture to the stored (column, row); README.md has the table
    CoordinateMap walk;
    switch (turns & 3) {
        case 1: walk = {0, 0, 1, height - 1, -1, 0}; break;
        case 2: walk = {width - 1, -1, 0, height - 1, 0, -1}; break;
        case 3: walk = {width - 1, 0, -1, 0, 1, 0}; break;
        default: walk = {0, 1, 0, 0, 0, 1}; break;
    }
    if (mirrored) {
        const int last = (turns & 1 ? height : width) - 1;
        walk.c0 += walk.cx * last;
        walk.r0 += walk.rx * last;
        walk.cx = -walk.cx;
        walk.rx = -walk.rx;
    }
    walk.c0 += left;
    walk.r0 += top;
    return walk;
}

// Coefficients of YUV to RGB in Q16, those of libswscale's ff_yuv2rgb_coeffs.
struct Coefficients {
    int red_v, blue_u, green_u, green_v;
};

Coefficients coefficients(int matrix) {
    switch (matrix) {
        case 1: return {117489, 138438, 13975, 34925};
        case 4: return {104448, 132798, 24759, 53109};
        case 7: return {117579, 136230, 16907, 35559};
        case 9:
        case 10: return {110013, 140363, 12277, 42626};
        default: return {104597, 132201, 25675, 53279};
    }
}

Colour colour_of(int matrix, bool full_range) {
    const Coefficients k = coefficients(matrix);
    Colour colour = {};
    colour.luma = full_range ? 65536 : 65536 * 255 / 219;
    colour.offset = full_range ? 0 : 16;
    const auto scaled = [&](int value) { return full_range ? static_cast<int>(value * 224LL / 255) : value; };
    colour.red_v = scaled(k.red_v);
    colour.green_u = -scaled(k.green_u);
    colour.green_v = -scaled(k.green_v);
    colour.blue_u = scaled(k.blue_u);
    const auto step = [&](int value) { return static_cast<int>((value * 65536LL + 0x8000) / colour.luma); };
    colour.red_step = step(colour.red_v);
    colour.green_u_step = step(colour.green_u);
    colour.green_v_step = step(colour.green_v);
    colour.blue_step = step(colour.blue_u);
    return colour;
}

}  // namespace

ScalePlan plan_scale(const Surface& surface, const Geometry& geometry) {
    const bool rotated = geometry.quarter_turns & 1;
    const int width = rotated ? surface.height : surface.width;
    const int height = rotated ? surface.width : surface.height;
    const int shift_x = rotated ? surface.chroma_shift_y : surface.chroma_shift_x;
    const int shift_y = rotated ? surface.chroma_shift_x : surface.chroma_shift_y;
    const bool same = width == geometry.width && height == geometry.height;
    const bool subsampled = shift_x > 0 || shift_y > 0;
    ScalePlan plan;
    // resized pictures are converted by planar RGB, which has chroma for every pixel
    plan.full_chroma = !geometry.bicubic || geometry.width % 2 == 1 || !subsampled;
    if (same && surface.depth == 8 && subsampled && height % 2 == 0) {
        plan.direct = true;
        return plan;
    }
    const Interpolation kernel = geometry.bicubic ? Interpolation::Bicubic : Interpolation::Bilinear;
    const int target_shift = plan.full_chroma ? 0 : 1;
    const int across = 1 << 14;
    const int down = 1 << 12;
    plan.tables[0] = make_filter(width, geometry.width, kernel, kCentred, kCentred, across, false);
    plan.tables[1] = make_filter(height, geometry.height, kernel, kCentred, kCentred, down, true);
    plan.tables[2] = make_filter(ceil_shift(width, shift_x), ceil_shift(geometry.width, target_shift), kernel, kCentred,
                                 kCentred, across, false);
    plan.tables[3] = make_filter(ceil_shift(height, shift_y), geometry.height, kernel, kCentred, kCentred, down, true);
    if (plan.tables[1].count == 2 && plan.tables[3].count == 2) {
        plan.vertical_mode = kTwoTaps;
    }
    return plan;
}

Conversion begin_conversion(const Surface& surface, const Geometry& geometry, const ScalePlan& plan) {
    Conversion c = {};
    const int sample_bytes = surface.depth > 8 ? 2 : 1;
    const uint64_t chroma = surface.address + static_cast<uint64_t>(surface.pitch) * surface.rows;
    const int shift_x = surface.chroma_shift_x;
    const int shift_y = surface.chroma_shift_y;
    const CoordinateMap luma_map = make_coordinate_map(surface.left, surface.top, surface.width, surface.height,
                                                       geometry.quarter_turns, geometry.mirrored);
    const CoordinateMap chroma_map =
        make_coordinate_map(surface.left >> shift_x, surface.top >> shift_y, ceil_shift(surface.width, shift_x),
                            ceil_shift(surface.height, shift_y), geometry.quarter_turns, geometry.mirrored);
    c.planes[0] = {surface.address, surface.pitch, 1, luma_map};
    if (surface.interleaved) {
        c.planes[1] = {chroma, surface.pitch, 2, chroma_map};
        c.planes[2] = {chroma + sample_bytes, surface.pitch, 2, chroma_map};
    } else {
        c.planes[1] = {chroma, surface.pitch, 1, chroma_map};
        c.planes[2] = {chroma + static_cast<uint64_t>(surface.pitch) * surface.rows, surface.pitch, 1, chroma_map};
    }
    c.wide = surface.depth > 8;
    c.depth = surface.depth;
    c.direct = plan.direct;
    const bool rotated = geometry.quarter_turns & 1;
    c.chroma_shift_x = rotated ? shift_y : shift_x;
    c.chroma_shift_y = rotated ? shift_x : shift_y;
    c.full_chroma = plan.full_chroma;
    c.full_range = geometry.full_range;
    c.vertical_mode = plan.vertical_mode;
    c.colour = colour_of(geometry.matrix, geometry.full_range);
    c.width = geometry.width;
    c.height = geometry.height;
    return c;
}

}  // namespace telecine
