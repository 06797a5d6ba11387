// Conversion of container packets to the byte stream that the NVDECODE parser reads.
#pragma once

#include <cstdint>
#include <vector>

#include "interfaces.h"

namespace telecine {

// The bytes of one packet for the parser. `data` points into the packet or into the PacketConverter.
struct ConvertedPacket {
    const uint8_t* data = nullptr;
    size_t size = 0;
    std::vector<size_t> picture_ends;  // where each coded picture ends; at least one entry, the last is `size`
    bool damaged = false;              // a wrong length, after which all is left out, or a slice with zeros
};

// Converts the packets of one stream. H.264 and HEVC: length-prefixed NAL units become Annex B (ISO/IEC 14496-15), with
// the parameter sets of the extradata prepended on request. VP8 and VP9 packets stay unchanged. Reads are within the
// given bytes, whatever their content.
class PacketConverter {
public:
    PacketConverter(VideoCodec codec, const uint8_t* extradata, size_t size);

    // The result is valid until the next call, and as long as the packet is.
    const ConvertedPacket& convert(const uint8_t* packet, size_t size, bool with_parameter_sets);

private:
    void read_avcc(const uint8_t* data, size_t size);
    void read_hvcc(const uint8_t* data, size_t size);
    bool read_parameter_set(const uint8_t* data, size_t size, size_t& at);
    void convert_lengths(const uint8_t* packet, size_t size);
    bool is_length_prefixed(const uint8_t* packet, size_t size) const;
    void find_picture_ends();

    VideoCodec codec_;
    int length_size_ = 0;  // 0: packets are in Annex B already
    std::vector<uint8_t> parameter_sets_;
    std::vector<uint8_t> buffer_;
    ConvertedPacket converted_;
};

}  // namespace telecine
