// Decodes one decode range, with a parser of its own and a decoder session from the pool.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "annexb.h"
#include "request.h"
#include "session.h"

namespace telecine {

// One decoded picture.
struct Picture {
    int packet;  // index into Request::packets
    int surface;
    bool intra;
    bool reliable = false;  // final once checked: it and all its references were decoded without an error
    bool displayed = false;
    std::vector<int> references;  // indices of pictures of this range; -1: not decoded in this range
};

// A wanted picture that the parser has output and that is not mapped yet.
struct Pending {
    int picture;
    int packet;
    DisplayInfo info;
    int64_t at;  // number of pictures submitted when it was output
};

class RangeDecoder {
public:
    // `stream` belongs to the worker. The device's context must be current in this thread for the life of this object.
    RangeDecoder(Device& device, SessionPool& pool, CUstream stream, Request& request, const DecodeRange& range);
    ~RangeDecoder();

    // Decodes and converts; afterwards every target of the range has its result. Throws Error if the machine fails, not
    // for a damaged video. All work is enqueued on the stream; the caller records an event after it.
    void execute();

private:
    struct Mapped {
        CUdeviceptr address;
        int32_t target;
        Event converted;  // null until the conversion is enqueued
    };

    static int on_sequence(void* self, VideoFormat* format);
    static int on_decode(void* self, PictureParams* params);
    static int on_display(void* self, DisplayInfo* info);
    template <typename Step>
    int catch_errors(Step step);

    int sequence(const VideoFormat& format);
    int decode(PictureParams& params);
    int display(const DisplayInfo& info);

    void feed_packets();
    void parse(SourcePacket& packet);
    void collect_references(const PictureParams& params, Picture& picture);
    void detect_missing_frames(const PictureParams& params, Picture& picture);
    void check_up_to(int picture);
    int status_of(int picture);
    void write_out(const Pending& pending);
    void convert(const Pending& pending, CUdeviceptr address, unsigned pitch);
    void write_pending(size_t keep);
    void unmap(size_t keep);
    void return_session(bool healthy);
    void drain();
    bool reorders() const;

    Device& device_;
    const Driver& driver_;
    SessionPool& pool_;
    CUstream stream_;
    Request& request_;
    DecodeRange range_;
    PacketConverter converter_;
    CUvideoparser parser_ = nullptr;
    std::unique_ptr<Session> session_;
    VideoFormat format_ = {};
    std::vector<std::shared_ptr<DeviceScale>> scales_;
    std::vector<Event> events_;  // unused ones

    std::vector<Picture> pictures_;
    std::vector<int> picture_in_surface_;  // index of the picture in each surface; -1: none of this range
    std::vector<int> missing_frame_nums_;  // H.264: frame_num of references that have never been decoded
    int num_checked_ = 0;
    int current_packet_ = -1;              // index of the packet being parsed
    int pictures_in_packet_ = 0;           // pictures that it has brought so far
    bool is_packet_damaged_ = false;       // some of its NAL units are missing
    bool unreliable_ = false;              // a required picture is lost, until the next random access point
    bool unreliable_before_open_ = false;  // the same before the last open point, for its leading pictures
    bool has_status_ = true;
    int64_t submitted_ = 0;
    std::deque<Pending> pending_;
    std::deque<Mapped> mapped_;
    std::unique_ptr<Error> error_;
    bool stopped_ = false;
};

}  // namespace telecine
