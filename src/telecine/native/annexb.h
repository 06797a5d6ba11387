// Packets as containers hold them, made into what the NVDECODE parser takes.
#pragma once

#include <cstdint>
#include <vector>

#include "interfaces.h"

namespace telecine {

// The bytes of one packet, ready for the parser. `data` points into the packet or into the Feed that made it.
struct Prepared {
    const uint8_t* data = nullptr;
    size_t size = 0;
    std::vector<size_t> pieces;  // where each coded picture ends; at least one entry, the last is `size`
    bool damaged = false;        // a part of it made no sense and is left out
};

// Converts the packets of one stream. H.264 and HEVC: length-prefixed NAL units become start codes (ISO/IEC 14496-15),
// and the parameter sets stand in front of a random access point. MPEG-1, 2, 4 and VC-1: the headers stand there. VP8
// and VP9 pass through. No read is outside of the bytes given, whatever they say.
class Feed {
public:
    Feed(VideoCodec codec, const uint8_t* extradata, size_t size);

    // The result is valid until the next call, and as long as the packet is.
    const Prepared& prepare(const uint8_t* packet, size_t size, bool with_headers);

private:
    void read_avcc(const uint8_t* data, size_t size);
    void read_hvcc(const uint8_t* data, size_t size);
    bool take_set(const uint8_t* data, size_t size, size_t& at);
    void convert_lengths(const uint8_t* packet, size_t size);
    bool carries_lengths(const uint8_t* packet, size_t size) const;
    bool starts_with_headers(const uint8_t* packet, size_t size) const;
    void find_pieces();

    VideoCodec codec_;
    int length_size_ = 0;  // 0: packets have start codes already
    std::vector<uint8_t> headers_;
    std::vector<uint8_t> buffer_;
    Prepared prepared_;
};

}  // namespace telecine
