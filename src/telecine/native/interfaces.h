// Declarations of the CUDA driver API and of NVDECODE (nvcuvid), as far as they are used, so that building needs no
// CUDA toolkit. Layouts and values follow NVIDIA's public interfaces: the CUDA driver API reference (cuda.h) and the
// NVDECODE API of the Video Codec SDK (cuviddec.h, nvcuvid.h, versions 9 to 13, which are binary compatible). Some names
// differ; driver.h has the driver's own symbols. 64-bit Linux only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace telecine {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = void*;
using CUstream = void*;
using CUevent = void*;
using CUmodule = void*;
using CUfunction = void*;

constexpr CUresult kSuccess = 0;
constexpr CUresult kInvalidValue = 1;
constexpr CUresult kOutOfMemory = 2;
constexpr CUresult kNotSupported = 801;

constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr int kAttributePciBus = 33;
constexpr int kAttributePciDevice = 34;
constexpr int kAttributePciDomain = 50;
constexpr int kAttributeComputeMajor = 75;
constexpr int kAttributeComputeMinor = 76;

using CUvideodecoder = void*;
using CUvideoparser = void*;

// Vc1 is not decoded; its capabilities can be queried.
enum class VideoCodec : int { Vc1 = 3, H264 = 4, Hevc = 8, Vp8 = 9, Vp9 = 10 };
enum class Chroma : int { Monochrome = 0, C420 = 1, C422 = 2, C444 = 3 };
enum class SurfaceFormat : int { Nv12 = 0, P016 = 1, Yuv444 = 2, Yuv444_16 = 3, Nv16 = 4, P216 = 5 };

constexpr int kDeinterlaceWeave = 0;
constexpr unsigned long kCreatePreferCuvid = 4;

struct ShortRect {
    short left, top, right, bottom;
};

struct DecodeCaps {
    VideoCodec codec;
    Chroma chroma;
    unsigned bit_depth_minus8;
    unsigned reserved1[3];
    unsigned char supported;
    unsigned char num_engines;
    unsigned short output_format_mask;
    unsigned max_width, max_height, max_macroblocks;
    unsigned short min_width, min_height;
    unsigned char histogram, counter_bit_depth;
    unsigned short max_histogram_bins;
    unsigned reserved3[10];
};

struct DecodeCreateInfo {
    unsigned long width, height;
    unsigned long num_decode_surfaces;
    VideoCodec codec;
    Chroma chroma;
    unsigned long creation_flags;
    unsigned long bit_depth_minus8;
    unsigned long intra_only;
    unsigned long max_width, max_height;
    unsigned long reserved1;
    ShortRect display_area;
    SurfaceFormat output_format;
    int deinterlace_mode;
    unsigned long target_width, target_height;
    unsigned long num_output_surfaces;
    void* lock;
    ShortRect target_rect;
    unsigned long enable_histogram;
    unsigned long reserved2[4];
};

struct ReconfigureInfo {
    unsigned width, height, target_width, target_height, num_decode_surfaces;
    unsigned reserved1[12];
    ShortRect display_area;
    ShortRect target_rect;
    unsigned reserved2[11];
};

struct H264DpbEntry {
    int picture;  // surface; -1: none
    int frame_num;
    int is_long_term;
    int not_existing;  // 1: the parser has inferred it from a gap in frame_num
    int used_for_reference;
    int order_count[2];
};

// Byte offsets of a picture's references in PictureParams::codec_part.
constexpr size_t kH264Dpb = 104;         // H264DpbEntry[16]
constexpr size_t kHevcCounts = 236;      // int: pictures before, after, long term
constexpr size_t kHevcRefPicture = 252;  // int[16]
constexpr size_t kHevcRefSets = 396;     // unsigned char[3][8], the same order as the counts
constexpr size_t kVp8References = 12;    // unsigned char[3]
constexpr size_t kVp9References = 8;     // unsigned char[3]

struct PictureParams {
    int width_in_mbs, height_in_mbs;
    int picture;  // the surface it is decoded into
    int field_picture, bottom_field, second_field;
    unsigned data_length;
    const unsigned char* data;
    unsigned num_slices;
    const unsigned* slice_offsets;
    int is_reference, is_intra;
    unsigned reserved[30];
    alignas(8) unsigned char codec_part[4096];
};

struct ProcessParams {
    int progressive_frame, second_field, top_field_first, unpaired_field;
    unsigned reserved_flags, reserved_zero;
    unsigned long long raw_input;
    unsigned raw_input_pitch, raw_input_format;
    unsigned long long raw_output;
    unsigned raw_output_pitch, reserved1;
    CUstream output_stream;
    unsigned reserved[46];
    unsigned long long* histogram;
    void* reserved2[1];
};

constexpr int kStatusInvalid = 0;
constexpr int kStatusInProgress = 1;
constexpr int kStatusSuccess = 2;
constexpr int kStatusError = 8;
constexpr int kStatusErrorConcealed = 9;

struct DecodeStatus {
    int status;
    unsigned reserved[31];
    void* reserved_pointers[8];
};

struct VideoFormat {
    VideoCodec codec;
    unsigned frame_rate_numerator, frame_rate_denominator;
    unsigned char progressive_sequence;
    unsigned char bit_depth_luma_minus8, bit_depth_chroma_minus8;
    unsigned char min_num_decode_surfaces;
    unsigned coded_width, coded_height;
    struct {
        int left, top, right, bottom;
    } display_area;
    Chroma chroma;
    unsigned bitrate;
    int aspect_x, aspect_y;
    unsigned char signal_flags;  // bits 0-2 video_format, bit 3 full range
    unsigned char color_primaries, transfer_characteristics, matrix_coefficients;
    unsigned sequence_header_length;
};

constexpr unsigned long kPacketEndOfStream = 1;
constexpr unsigned long kPacketTimestamp = 2;
constexpr unsigned long kPacketEndOfPicture = 8;

struct SourcePacket {
    unsigned long flags;
    unsigned long size;
    const unsigned char* data;
    long long timestamp;
};

struct DisplayInfo {
    int picture;
    int progressive_frame;
    int top_field_first;
    int repeat_first_field;  // -1: unpaired field
    long long timestamp;
};

struct ParserParams {
    VideoCodec codec;
    unsigned max_decode_surfaces;
    unsigned clock_rate;
    unsigned error_threshold;  // percent; 100: decode even what is fully corrupted
    unsigned max_display_delay;
    unsigned flags;
    unsigned reserved1[4];
    void* user;
    int (*on_sequence)(void*, VideoFormat*);
    int (*on_decode)(void*, PictureParams*);
    int (*on_display)(void*, DisplayInfo*);
    int (*on_operating_point)(void*, void*);
    void* reserved2[6];
    void* extended_info;
};

static_assert(sizeof(void*) == 8, "64-bit platforms only");
static_assert(sizeof(DecodeCaps) == 88 && sizeof(DecodeCreateInfo) == 176 && sizeof(ReconfigureInfo) == 128);
static_assert(offsetof(PictureParams, codec_part) == 184 && sizeof(PictureParams) == 4280 &&
              sizeof(H264DpbEntry) == 28);
static_assert(sizeof(ProcessParams) == 264 && sizeof(DecodeStatus) == 192 && sizeof(VideoFormat) == 64);
static_assert(sizeof(ParserParams) == 136 && sizeof(DisplayInfo) == 24 && sizeof(SourcePacket) == 32);

}  // namespace telecine
