// Preloaded: the program has at most MET_TEST_THREADS threads at a time, besides its first.

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <dlfcn.h>
#include <pthread.h>

using Start = void *(*)(void *);
using Create = int (*)(pthread_t *, const pthread_attr_t *, Start, void *);

struct Errand {
    Start start;
    void *argument;
};

static std::atomic<long> &left() {
    static std::atomic<long> left(std::atol(std::getenv("MET_TEST_THREADS")));
    return left;
}

static void *run(void *given) {
    const Errand errand = *static_cast<Errand *>(given);
    delete static_cast<Errand *>(given);
    void *result = errand.start(errand.argument);
    left()++;
    return result;
}

extern "C" int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, Start start, void *argument) {
    static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
    if (left()-- <= 0) {
        left()++;
        return EAGAIN;
    }
    return real(thread, attributes, run, new Errand{start, argument});
}
