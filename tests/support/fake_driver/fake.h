// A stand-in for NVIDIA's driver libraries, so that the engine can be tested without a GPU. It "decodes" a bitstream
// made by tests/support/fake_driver/stream.py, runs the real conversion code on the CPU, counts every handle, and fails when told to.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "interfaces.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake {

// Settings by name, set by the tests; counters by name, read by them. Both are plain numbers.
long setting(const char* name);
// Takes one from a setting that counts down; whether there was one.
bool use_up(const char* name);
void count(const char* name, long change);
// Something that the interface forbids was done.
void violation(const char* what);

}  // namespace fake
