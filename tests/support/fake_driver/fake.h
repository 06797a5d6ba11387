// A fake of NVIDIA's driver libraries, to test the engine without a GPU. It decodes a bitstream made by stream.py in this
// folder, runs the real conversion code on the CPU, counts every handle, and fails on request.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "interfaces.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake {

// Returns a setting, which the tests set by name.
long setting(const char* name);
// Decrements a setting; returns false if it is 0.
bool use_up(const char* name);
// Changes a counter, which the tests read by name.
void count(const char* name, long change);
// Sleeps for the microseconds of a setting.
void pause(const char* name);
// Reports a call that the interface forbids.
void violation(const char* what);

}  // namespace fake
