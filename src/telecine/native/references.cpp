// Finds the references of each picture, so that damage marks exactly the pictures that depend on it as unreliable.
#include <algorithm>
#include <cstring>

#include "range_decoder.h"

namespace telecine {
namespace {

template <typename T>
T read_at(const PictureParams& params, size_t offset) {
    T value;
    memcpy(&value, params.codec_part + offset, sizeof(T));
    return value;
}

constexpr int kNoSurface = -1;
constexpr int kMissingSurface = -2;

}  // namespace

void RangeDecoder::collect_references(const PictureParams& params, Picture& picture) {
    const auto add = [&](int surface) {
        if (surface == kNoSurface) {
            return;
        }
        const bool known = surface >= 0 && static_cast<size_t>(surface) < picture_in_surface_.size();
        const int referred = known ? picture_in_surface_[surface] : -1;
        // the second field may refer to the first one of the same picture
        if (referred != picture_in_surface_[picture.surface]) {
            picture.references.push_back(referred);
        }
    };
    if (!picture.intra) {
        switch (request_.codec) {
            case VideoCodec::H264:
                for (size_t i = 0; i < 16; ++i) {
                    const auto entry = read_at<H264DpbEntry>(params, kH264Dpb + i * sizeof(H264DpbEntry));
                    if (entry.used_for_reference != 0 && entry.picture >= 0) {
                        add(entry.picture);
                    }
                }
                break;
            case VideoCodec::Hevc:
                for (size_t set = 0; set < 3; ++set) {
                    const int count = read_at<int>(params, kHevcCounts + set * sizeof(int));
                    for (int i = 0; i < count && i < 8; ++i) {
                        const auto slot =
                            read_at<unsigned char>(params, kHevcRefSets + set * 8 + static_cast<size_t>(i));
                        const int surface = slot < 16 ? read_at<int>(params, kHevcRefPicture + slot * sizeof(int)) : -1;
                        add(surface < 0 ? kMissingSurface : surface);
                    }
                }
                break;
            case VideoCodec::Vp8:
            case VideoCodec::Vp9:
                for (size_t i = 0; i < 3; ++i) {
                    add(read_at<unsigned char>(
                        params, (request_.codec == VideoCodec::Vp8 ? kVp8References : kVp9References) + i));
                }
                break;
            default: break;
        }
    }
    detect_missing_frames(params, picture);
}

// H.264: detects reference frames that were never decoded. They are normal at the start of a range that does not start
// at an IDR picture; one that appears later means that a packet was lost.
void RangeDecoder::detect_missing_frames(const PictureParams& params, Picture& picture) {
    const bool first = pictures_.size() == 1;
    if (request_.codec == VideoCodec::H264) {
        for (size_t i = 0; i < 16; ++i) {
            const auto entry = read_at<H264DpbEntry>(params, kH264Dpb + i * sizeof(H264DpbEntry));
            if (entry.used_for_reference == 0 || entry.not_existing == 0) {
                continue;
            }
            const bool known = std::find(missing_frame_nums_.begin(), missing_frame_nums_.end(), entry.frame_num) !=
                               missing_frame_nums_.end();
            if (!known) {
                missing_frame_nums_.push_back(entry.frame_num);
                unreliable_ |= !first && request_.trust_references;
            }
        }
    }
    // preliminary: check_up_to() adds the status and the references
    const uint8_t flags = request_.packets[picture.packet].flags;
    picture.reliable = !unreliable_ && !is_packet_damaged_ && (flags & kCorrupt) == 0 &&
                       !(unreliable_before_open_ && (flags & kLeading) != 0);
}

}  // namespace telecine
