// A limit on new threads, for processes that preload this library: "threads_left" more can be started; -1 is no limit.
#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>

#include "fake.h"

EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
    if (fake::setting("threads_left") == 0) {
        return EAGAIN;
    }
    fake::use_up("threads_left");
    static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
    return create(thread, attributes, start, argument);
}
