#include "annexb.h"

#include <algorithm>
#include <cstring>

namespace telecine {
namespace {

constexpr uint8_t kStartCode[4] = {0, 0, 0, 1};

// The position of the next 00 00 01 at or after `at`, or `size`.
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

uint32_t big_endian(const uint8_t* data, int bytes) {
    uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) {
        value = value << 8 | data[i];
    }
    return value;
}

}  // namespace

Feed::Feed(VideoCodec codec, const uint8_t* extradata, size_t size) : codec_(codec) {
    if (codec == VideoCodec::Vp8 || codec == VideoCodec::Vp9 || size == 0) {
        return;
    }
    const bool nal_units = codec == VideoCodec::H264 || codec == VideoCodec::Hevc;
    if (nal_units && !has_start_code(extradata, size)) {
        codec == VideoCodec::H264 ? read_avcc(extradata, size) : read_hvcc(extradata, size);
        return;
    }
    // VC-1 in ASF and Matroska may have bytes of its own in front of the sequence header
    const size_t start = codec == VideoCodec::Vc1 ? next_start_code(extradata, size, 0) : 0;
    headers_.assign(extradata + start, extradata + size);
}

bool Feed::take_set(const uint8_t* data, size_t size, size_t& at) {
    if (at + 2 > size) {
        return false;
    }
    const size_t length = big_endian(data + at, 2);
    at += 2;
    if (length > size - at) {
        return false;
    }
    if (length > 0) {
        headers_.insert(headers_.end(), kStartCode, kStartCode + 4);
        headers_.insert(headers_.end(), data + at, data + at + length);
    }
    at += length;
    return true;
}

void Feed::read_avcc(const uint8_t* data, size_t size) {
    if (size < 7) {
        return;
    }
    length_size_ = (data[4] & 3) + 1;
    size_t at = 6;
    for (int i = data[5] & 31; i > 0; --i) {
        if (!take_set(data, size, at)) {
            return;
        }
    }
    if (at >= size) {
        return;
    }
    for (int i = data[at++]; i > 0; --i) {
        if (!take_set(data, size, at)) {
            return;
        }
    }
}

void Feed::read_hvcc(const uint8_t* data, size_t size) {
    if (size < 23) {
        return;
    }
    length_size_ = (data[21] & 3) + 1;
    size_t at = 23;
    for (int arrays = data[22]; arrays > 0 && at + 3 <= size; --arrays) {
        const uint32_t count = big_endian(data + at + 1, 2);
        at += 3;
        for (uint32_t i = 0; i < count; ++i) {
            if (!take_set(data, size, at)) {
                return;
            }
        }
    }
}

bool Feed::carries_lengths(const uint8_t* packet, size_t size) const {
    if (length_size_ == 0) {
        return false;
    }
    // some files say avcC and hold start codes; a first NAL unit of one byte is not a thing
    return !(length_size_ == 4 && size >= 4 && big_endian(packet, 4) == 1);
}

void Feed::convert_lengths(const uint8_t* packet, size_t size) {
    size_t at = 0;
    const auto prefix = static_cast<size_t>(length_size_);
    while (at < size) {
        if (size - at < prefix) {
            prepared_.damaged = true;
            return;
        }
        const size_t length = big_endian(packet + at, length_size_);
        at += prefix;
        if (length > size - at) {
            prepared_.damaged = true;
            return;
        }
        if (length > 0) {
            buffer_.insert(buffer_.end(), kStartCode, kStartCode + 4);
            buffer_.insert(buffer_.end(), packet + at, packet + at + length);
        }
        at += length;
    }
}

bool Feed::starts_with_headers(const uint8_t* packet, size_t size) const {
    for (size_t at = next_start_code(packet, size, 0); at + 4 <= size; at = next_start_code(packet, size, at + 3)) {
        const uint8_t code = packet[at + 3];
        switch (codec_) {
            case VideoCodec::Mpeg1:
            case VideoCodec::Mpeg2:
                if (code == 0xB3 || code == 0x00) {
                    return code == 0xB3;
                }
                break;
            case VideoCodec::Mpeg4:
                if ((code >= 0x20 && code <= 0x2F) || code == 0xB6) {
                    return code != 0xB6;
                }
                break;
            case VideoCodec::Vc1: return code == 0x0F;
            default: return false;  // parameter sets may stand twice
        }
    }
    return false;
}

// The parser decodes one picture for each packet flagged as a whole picture and ignores a second one, so the two fields
// of a frame must be given one by one.
void Feed::find_pieces() {
    const uint8_t* data = prepared_.data;
    const size_t size = prepared_.size;
    bool seen = false;
    size_t end_of_picture = 0;
    for (size_t at = next_start_code(data, size, 0); at + 5 <= size;) {
        const size_t next = next_start_code(data, size, at + 3);
        const uint8_t code = data[at + 3];
        bool starts = false;
        bool belongs = false;  // slice data
        if (codec_ == VideoCodec::H264) {
            belongs = (code & 31) == 1 || (code & 31) == 5;
            starts = belongs && (data[at + 4] & 0x80) != 0;  // first_mb_in_slice is 0
        } else if (codec_ == VideoCodec::Mpeg1 || codec_ == VideoCodec::Mpeg2) {
            starts = code == 0x00;
            belongs = code <= 0xAF;
        } else if (codec_ == VideoCodec::Mpeg4) {
            starts = belongs = code == 0xB6;
        }
        if (starts && seen) {
            prepared_.pieces.push_back(end_of_picture);
        }
        seen |= starts;
        if (belongs) {
            // the zeros in front of a start code belong to it
            end_of_picture = next;
            while (end_of_picture > at + 4 && end_of_picture < size && data[end_of_picture - 1] == 0) {
                --end_of_picture;
            }
        }
        at = next;
    }
    prepared_.pieces.push_back(size);
}

const Prepared& Feed::prepare(const uint8_t* packet, size_t size, bool with_headers) {
    prepared_ = Prepared();
    buffer_.clear();
    const bool lengths = carries_lengths(packet, size);
    const bool bare_vc1 = codec_ == VideoCodec::Vc1 && !has_start_code(packet, size);
    const bool headers = with_headers && !headers_.empty() && (lengths || !starts_with_headers(packet, size));
    if (headers) {
        buffer_ = headers_;
    }
    if (lengths) {
        convert_lengths(packet, size);
    } else if (headers || bare_vc1) {
        if (bare_vc1) {
            const uint8_t frame[4] = {0, 0, 1, 0x0D};
            buffer_.insert(buffer_.end(), frame, frame + 4);
        }
        buffer_.insert(buffer_.end(), packet, packet + size);
    } else {
        prepared_.data = packet;
        prepared_.size = size;
    }
    if (prepared_.data == nullptr) {
        prepared_.data = buffer_.data();
        prepared_.size = buffer_.size();
    }
    if (codec_ == VideoCodec::H264 || codec_ == VideoCodec::Mpeg1 || codec_ == VideoCodec::Mpeg2 ||
        codec_ == VideoCodec::Mpeg4) {
        find_pieces();
    } else {
        prepared_.pieces.push_back(prepared_.size);
    }
    return prepared_;
}

}  // namespace telecine
