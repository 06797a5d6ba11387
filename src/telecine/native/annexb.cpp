#include "annexb.h"

#include <algorithm>
#include <cstring>

namespace telecine {
namespace {

constexpr uint8_t kStartCode[4] = {0, 0, 0, 1};

// Returns the position of the next 00 00 01 at or after `at`, or `size`.
size_t next_start_code(const uint8_t* data, size_t size, size_t at) {
    while (at + 3 <= size) {
        const auto* one = static_cast<const uint8_t*>(memchr(data + at + 2, 1, size - at - 2));
        if (one == nullptr) {
            break;
        }
        const auto found = static_cast<size_t>(one - data);
        if (data[found - 1] == 0 && data[found - 2] == 0) {
            return found - 2;
        }
        at = found - 1;
    }
    return size;
}

bool has_start_code(const uint8_t* data, size_t size) {
    return size >= 4 && data[0] == 0 && data[1] == 0 && (data[2] == 1 || (data[2] == 0 && data[3] == 1));
}

bool is_slice(VideoCodec codec, uint8_t header) {
    const int type = codec == VideoCodec::H264 ? header & 31 : header >> 1 & 63;
    return codec == VideoCodec::H264 ? type >= 1 && type <= 5 : type < 32;
}

// Returns true if there are three zeros in a row, which emulation prevention keeps out of NAL units (7.4.1). Zeros at the
// end may be padding.
bool has_zeros_inside(const uint8_t* data, size_t size) {
    while (size > 0 && data[size - 1] == 0) {
        --size;
    }
    // three in a row include one of every third byte
    for (size_t at = 2; at < size; at += 3) {
        if (data[at] != 0) {
            continue;
        }
        const int before = data[at - 1] != 0 ? 0 : data[at - 2] != 0 ? 1 : 2;
        const int after = at + 1 >= size || data[at + 1] != 0 ? 0 : at + 2 >= size || data[at + 2] != 0 ? 1 : 2;
        if (before + after >= 2) {
            return true;
        }
    }
    return false;
}

uint32_t big_endian(const uint8_t* data, int bytes) {
    uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) {
        value = value << 8 | data[i];
    }
    return value;
}

}  // namespace

PacketConverter::PacketConverter(VideoCodec codec, const uint8_t* extradata, size_t size) : codec_(codec) {
    if (size == 0 || (codec != VideoCodec::H264 && codec != VideoCodec::Hevc)) {
        return;
    }
    if (has_start_code(extradata, size)) {
        parameter_sets_.assign(extradata, extradata + size);
    } else if (codec == VideoCodec::H264) {
        read_avcc(extradata, size);
    } else {
        read_hvcc(extradata, size);
    }
}

bool PacketConverter::read_parameter_set(const uint8_t* data, size_t size, size_t& at) {
    if (at + 2 > size) {
        return false;
    }
    const size_t length = big_endian(data + at, 2);
    at += 2;
    if (length > size - at) {
        return false;
    }
    if (length > 0) {
        parameter_sets_.insert(parameter_sets_.end(), kStartCode, kStartCode + 4);
        parameter_sets_.insert(parameter_sets_.end(), data + at, data + at + length);
    }
    at += length;
    return true;
}

void PacketConverter::read_avcc(const uint8_t* data, size_t size) {
    if (size < 7) {
        return;
    }
    length_size_ = (data[4] & 3) + 1;
    size_t at = 6;
    for (int i = data[5] & 31; i > 0; --i) {
        if (!read_parameter_set(data, size, at)) {
            return;
        }
    }
    if (at >= size) {
        return;
    }
    for (int i = data[at++]; i > 0; --i) {
        if (!read_parameter_set(data, size, at)) {
            return;
        }
    }
}

void PacketConverter::read_hvcc(const uint8_t* data, size_t size) {
    if (size < 23) {
        return;
    }
    length_size_ = (data[21] & 3) + 1;
    size_t at = 23;
    for (int arrays = data[22]; arrays > 0 && at + 3 <= size; --arrays) {
        const uint32_t count = big_endian(data + at + 1, 2);
        at += 3;
        for (uint32_t i = 0; i < count; ++i) {
            if (!read_parameter_set(data, size, at)) {
                return;
            }
        }
    }
}

bool PacketConverter::is_length_prefixed(const uint8_t* packet, size_t size) const {
    if (length_size_ == 0) {
        return false;
    }
    // some files have avcC but start codes in their packets; a first NAL unit of one byte does not exist
    return !(length_size_ == 4 && size >= 4 && big_endian(packet, 4) == 1);
}

void PacketConverter::convert_lengths(const uint8_t* packet, size_t size) {
    size_t at = 0;
    const auto prefix = static_cast<size_t>(length_size_);
    while (at < size) {
        if (size - at < prefix) {
            return;  // padding: FFmpeg decodes such packets too
        }
        const size_t length = big_endian(packet + at, length_size_);
        at += prefix;
        // a NAL unit has a header; FFmpeg refuses an empty one too
        if (length == 0 || length > size - at) {
            converted_.damaged = true;
            return;
        }
        converted_.damaged |= is_slice(codec_, packet[at]) && has_zeros_inside(packet + at, length);
        buffer_.insert(buffer_.end(), kStartCode, kStartCode + 4);
        buffer_.insert(buffer_.end(), packet + at, packet + at + length);
        at += length;
    }
}

// Finds the fields of an H.264 frame. With the flag for a whole picture, the parser decodes one picture of a packet and
// ignores a second one, so both fields must be passed to it separately.
void PacketConverter::find_picture_ends() {
    const uint8_t* data = converted_.data;
    const size_t size = converted_.size;
    bool has_picture = false;
    size_t end_of_picture = 0;
    for (size_t at = next_start_code(data, size, 0); at + 5 <= size;) {
        const size_t next = next_start_code(data, size, at + 3);
        const int type = data[at + 3] & 31;
        if (type == 1 || type == 5) {                                // a slice
            const bool starts_picture = (data[at + 4] & 0x80) != 0;  // first_mb_in_slice is 0
            if (starts_picture && has_picture) {
                converted_.picture_ends.push_back(end_of_picture);
            }
            has_picture |= starts_picture;
            // zeros before a start code belong to it
            end_of_picture = next;
            while (end_of_picture > at + 4 && end_of_picture < size && data[end_of_picture - 1] == 0) {
                --end_of_picture;
            }
        }
        at = next;
    }
    converted_.picture_ends.push_back(size);
}

const ConvertedPacket& PacketConverter::convert(const uint8_t* packet, size_t size, bool with_parameter_sets) {
    converted_ = ConvertedPacket();
    buffer_.clear();
    if (with_parameter_sets) {
        buffer_ = parameter_sets_;
    }
    const bool length_prefixed = is_length_prefixed(packet, size);
    if (length_prefixed) {
        convert_lengths(packet, size);
    } else if (!buffer_.empty()) {
        buffer_.insert(buffer_.end(), packet, packet + size);
    }
    const bool copied = length_prefixed || !buffer_.empty();
    converted_.data = copied ? buffer_.data() : packet;
    converted_.size = copied ? buffer_.size() : size;
    if (codec_ == VideoCodec::H264) {
        find_picture_ends();
    } else {
        converted_.picture_ends.push_back(converted_.size);
    }
    return converted_;
}

}  // namespace telecine
