// Decodes one run: a fresh parser in front of a warm session.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "annexb.h"
#include "request.h"
#include "session.h"

namespace telecine {

// What is known of one decoded picture.
struct Picture {
    int packet;  // index into Request::packets
    int surface;
    bool intra;
    bool sound = false;  // valid once judged: it and all it refers to came out without an error
    bool displayed = false;
    std::vector<int> references;  // indices of pictures of this run; -1: a picture that was never decoded here
};

// A wanted picture that the parser has released for display and that is not mapped yet.
struct Pending {
    int picture;
    int packet;
    DisplayInfo info;
    int64_t at;  // pictures submitted until then
};

class RunDecoder {
public:
    // `stream` is the worker's own; the device's context is current in this thread for the life of this object.
    RunDecoder(Device& device, SessionStore& store, CUstream stream, Request& request, const Run& run);
    ~RunDecoder();

    // Decode and convert; every target of the run has its verdict afterwards. Throws Error where the machine, not the
    // video, is at fault. All work on the stream is enqueued, and `written` is to be recorded by the caller.
    void execute();

private:
    struct Mapped {
        CUdeviceptr address;
        CUevent converted;
    };

    static int on_sequence(void* self, VideoFormat* format);
    static int on_decode(void* self, PictureParams* params);
    static int on_display(void* self, DisplayInfo* info);
    template <typename Step>
    int guarded(Step step);

    int sequence(const VideoFormat& format);
    int decode(PictureParams& params);
    int display(const DisplayInfo& info);

    void feed_all();
    void parse(SourcePacket& packet);
    void note_references(const PictureParams& params, Picture& picture);
    void note_gaps(const PictureParams& params, Picture& picture);
    void judge_up_to(int picture);
    int status_of(int picture);
    void write_out(const Pending& pending);
    void convert(const Pending& pending, CUdeviceptr address, unsigned pitch);
    void write_pending(size_t keep);
    void unmap(size_t keep);
    void leave_session(bool healthy);
    void drain();
    bool reorders() const;

    Device& device_;
    const Driver& driver_;
    SessionStore& store_;
    CUstream stream_;
    Request& request_;
    Run run_;
    Feed feed_;
    CUvideoparser parser_ = nullptr;
    std::unique_ptr<Session> session_;
    VideoFormat format_ = {};
    std::vector<std::shared_ptr<DeviceScale>> scales_;
    std::vector<CUevent> events_;  // free ones

    std::vector<Picture> pictures_;
    std::vector<int> occupant_;  // picture in each surface; -1: none of this run
    std::vector<int> gaps_;      // frame numbers that were missing before the run began
    int judged_ = 0;
    int current_ = -1;            // packet being parsed
    int in_packet_ = 0;           // pictures that it has brought
    bool broken_ = false;         // something needed is lost, until the next point of access
    bool broken_before_ = false;  // the same ahead of the last open one, for the leading pictures behind it
    bool has_status_ = true;
    int64_t submitted_ = 0;
    std::deque<Pending> pending_;
    std::deque<Mapped> mapped_;
    std::unique_ptr<Error> error_;
    bool stopped_ = false;
};

}  // namespace telecine
