// Which pictures a picture refers to, so that damage is followed exactly as far as it reaches.
#include <algorithm>
#include <cstring>

#include "run.h"

namespace telecine {
namespace {

template <typename T>
T read_at(const PictureParams& params, size_t offset) {
    T value;
    memcpy(&value, params.codec_part + offset, sizeof(T));
    return value;
}

constexpr int kNone = -1;
constexpr int kMissing = -2;

}  // namespace

void RunDecoder::note_references(const PictureParams& params, Picture& picture) {
    const auto add = [&](int surface) {
        if (surface == kNone) {
            return;
        }
        const bool known = surface >= 0 && static_cast<size_t>(surface) < occupant_.size();
        const int referred = known ? occupant_[surface] : -1;
        // the second field may refer to the first one of the same picture
        if (referred != occupant_[picture.surface]) {
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
                        add(surface < 0 ? kMissing : surface);
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
            default:
                for (size_t i = 0; i < 2; ++i) {
                    add(read_at<int>(params, kMpegReferences + i * sizeof(int)));
                }
        }
    }
    note_gaps(params, picture);
}

// H.264: reference frames that are not there at all. Some are normal where a run starts at a picture that is not an
// IDR; one that turns up later means that a packet in between was lost.
void RunDecoder::note_gaps(const PictureParams& params, Picture& picture) {
    const bool first = pictures_.size() == 1;
    if (request_.codec == VideoCodec::H264) {
        for (size_t i = 0; i < 16; ++i) {
            const auto entry = read_at<H264DpbEntry>(params, kH264Dpb + i * sizeof(H264DpbEntry));
            if (entry.used_for_reference == 0 || entry.not_existing == 0) {
                continue;
            }
            const bool known = std::find(gaps_.begin(), gaps_.end(), entry.frame_num) != gaps_.end();
            if (!known) {
                gaps_.push_back(entry.frame_num);
                broken_ |= !first && request_.trust_references;
            }
        }
    }
    // provisional: the status and the references are judged when the picture is complete
    const uint8_t flags = request_.packets[picture.packet].flags;
    picture.sound = !broken_ && (flags & kCorrupt) == 0 && !(broken_before_ && (flags & kLeading) != 0);
}

}  // namespace telecine
