/* A libnvidia-ml.so.1 without a GPU, for tests: what pynvml and the guardian call, on a state in a shared file.
 *
 * The file is named by FAKE_NVML_STATE and mapped by every process at nvmlInit; a driver's state outlives processes,
 * and so does this. Without the variable, or without the file, nvmlInit answers "driver not loaded" (9).
 * Its layout is struct state, which tests/fake_nvml/__init__.py repeats in ctypes: change both.
 *
 * Every entry point counts its calls and may be told to fail, or never to return (struct fault).
 * A GPU draws min(demand, limit in force), which approaches the limit set; its energy counter moves in ticks.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define GPUS 8
#define FAULTS 16
#define CALLS 32
#define SETS 64
enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, NEVER = -1 }; /* NEVER: it does not return */

struct gpu {
    char name[64], uuid[64], mig_uuid[64];
    double min_w, max_w, default_w, limit_w;
    double cap_w;       /* another cap that holds as well; 0: none */
    double floor_w;     /* a limit below this does not bind */
    double idle_w, demand_w;
    double in_force_w, energy_mj, counter_mj, at_s; /* as of at_s */
    double tick_s, settle_s;
    double slow_s;      /* how long each call on this GPU takes */
    double busy_percent; /* of the time a kernel runs; below 0: not supported */
    double clock_mhz, max_clock_mhz; /* of the multiprocessors */
    double capped_ns;   /* for which the limit held back the demand, as of at_s */
    uint32_t enforced_profiles[8]; /* a bit for each workload power profile */
    /* may_set 0: nobody, 1: everybody, 2: processes with FAKE_NVML_ROOT in their environment */
    int32_t may_set, has_counter, has_power, mig_enabled, processes, lost, deaf, has_mig_mode;
    int32_t own_pid; /* of the first process, where it is not 0 */
    int32_t has_violations; /* whether capped_ns can be read; the reasons always can */
    int32_t reasons;    /* why the clock is not higher, besides the power limit */
    int32_t resting;    /* whether no kernel runs at this moment: of busy_percent the samples alone tell */
    int32_t has_samples;
    int32_t has_power_profiles; /* whether the GPU knows workload power profiles */
};
/* function "*": each one; times -1: for good; pid 0: of all processes */
struct fault { char function[64]; int32_t code, after, times, seen, pid; };
struct count { char function[64]; int32_t calls; };
struct set { int32_t gpu, pid, code; double limit_w; };
struct state {
    char magic[8];
    pthread_mutex_t lock; /* robust, shared between processes */
    char room[128 - sizeof(pthread_mutex_t)];
    double clock_s; /* the time, where a test tells it; 0: the host's */
    int32_t gpus, driver_missing, sets_done, abused;
    struct gpu gpu[GPUS];
    struct fault fault[FAULTS];
    struct count count[CALLS];
    struct set set[SETS];
};
typedef struct { int32_t index, is_mig, pid; } *device; /* pid: whose handle it is */

static struct state *state;
static pid_t ready_in; /* the process that called nvmlInit; a forked child has to do so itself */
static int opened;
static struct { int32_t index, is_mig, pid; } handles[2 * GPUS];

static double now_s(void) {
    struct timespec t;
    if (state->clock_s > 0) return state->clock_s;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void hold(void) {
    if (pthread_mutex_lock(&state->lock) == EOWNERDEAD) pthread_mutex_consistent(&state->lock);
}

static int leave(int code) {
    pthread_mutex_unlock(&state->lock);
    return code;
}

static double drawn_w(const struct gpu *g) {
    double limit_w = fmax(g->in_force_w, g->floor_w);
    return fmin(fmax(g->demand_w, g->idle_w), limit_w);
}

static double enforced_w(const struct gpu *g) {
    double limit_w = fmax(g->limit_w, g->floor_w);
    return g->cap_w > 0 && g->cap_w < limit_w ? g->cap_w : limit_w;
}

static void advance(struct gpu *g) {
    double now = now_s();
    while (g->at_s + g->tick_s <= now) {
        double left = g->in_force_w - enforced_w(g);
        g->in_force_w = fabs(left) < 0.5 ? enforced_w(g) : enforced_w(g) + left * exp(-g->tick_s / g->settle_s);
        int capped = g->demand_w > fmax(g->in_force_w, g->floor_w);
        if (left == 0 && now - g->at_s > 60) { /* long idle: whole ticks at once */
            double ticks = floor((now - g->at_s) / g->tick_s);
            g->energy_mj += drawn_w(g) * ticks * g->tick_s * 1000;
            g->capped_ns += capped * ticks * g->tick_s * 1e9;
            g->at_s += ticks * g->tick_s;
            break;
        }
        g->energy_mj += drawn_w(g) * g->tick_s * 1000;
        g->capped_ns += capped * g->tick_s * 1e9;
        g->at_s += g->tick_s;
    }
    g->counter_mj = floor(g->energy_mj);
}

/* Counts the call; the code with which it has to fail, or OK. Holds the lock. */
static int begin(const char *function) {
    int i;
    hold();
    for (i = 0; i < CALLS && state->count[i].function[0] && strcmp(state->count[i].function, function); i++) {}
    if (i < CALLS) {
        strncpy(state->count[i].function, function, 63);
        state->count[i].calls++;
    }
    for (i = 0; i < FAULTS; i++) {
        struct fault *f = &state->fault[i];
        if (strcmp(f->function, function) && strcmp(f->function, "*")) continue;
        if (f->pid && f->pid != getpid()) continue;
        if (f->seen++ < f->after || (f->times >= 0 && f->seen > f->after + f->times)) continue;
        if (f->code != NEVER) return f->code;
        leave(OK);
        for (;;) pause();
    }
    return OK;
}

static int begin_ready(const char *function) {
    if (!state || !opened) return UNINITIALIZED;
    int code = begin(function);
    if (ready_in != getpid()) {
        state->abused++;
        return UNINITIALIZED;
    }
    return code;
}

static int begin_on(const char *function, device d, struct gpu **g) {
    if (!state || !opened) return UNINITIALIZED;
    if (state->gpu[d->index].slow_s > 0) usleep((useconds_t)(state->gpu[d->index].slow_s * 1e6)); /* others go on */
    int code = begin_ready(function);
    if (code) return code;
    if (d->pid != getpid()) {
        state->abused++;
        return INVALID_ARGUMENT;
    }
    *g = &state->gpu[d->index];
    if ((*g)->lost) return GPU_IS_LOST;
    advance(*g);
    return OK;
}
#define READY() \
    int code = begin_ready(__func__); \
    if (!state || !opened) return UNINITIALIZED
#define ON_GPU(d) \
    struct gpu *g; \
    int code = begin_on(__func__, d, &g); \
    if (!state || !opened) return UNINITIALIZED; \
    if (code) return leave(code)
#define ON_WHOLE_GPU(d) ON_GPU(d); if ((d)->is_mig) return leave(NOT_SUPPORTED)

static int map_file(const char *path, int create) {
    int file = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0600);
    if (file < 0) return -1;
    struct stat found;
    if (create ? ftruncate(file, sizeof(struct state)) : fstat(file, &found) || found.st_size != sizeof(struct state)) {
        close(file);
        return -1;
    }
    state = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); /* never unmapped: in use */
    close(file);
    if (state == MAP_FAILED) state = NULL;
    return state ? 0 : -1;
}

/* For tests/fake_nvml/__init__.py: a fresh state with its lock, without GPUs; 0, or -1. */
API int fake_nvml_create(const char *path) {
    struct state *before = state;
    int failed = map_file(path, 1);
    if (!failed) {
        pthread_mutexattr_t kind;
        pthread_mutexattr_init(&kind);
        pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&state->lock, &kind);
        memcpy(state->magic, "FAKENVML", 8);
        munmap(state, sizeof(struct state));
    }
    state = before;
    return failed;
}
API long fake_nvml_size(void) { return sizeof(struct state); }

static int init(const char *function) {
    const char *path = getenv("FAKE_NVML_STATE");
    int before = opened;
    if (!path || map_file(path, 0)) return DRIVER_NOT_LOADED;
    int code = begin(function);
    if (!code && state->driver_missing) code = DRIVER_NOT_LOADED;
    if (!code) {
        opened = ready_in == getpid() ? before + 1 : 1;
        ready_in = getpid();
        for (int i = 0; i < 2 * GPUS; i++) {
            handles[i].index = i / 2;
            handles[i].is_mig = i % 2;
        }
    }
    return leave(code);
}
API int nvmlInitWithFlags(unsigned flags) { return flags ? INVALID_ARGUMENT : init("nvmlInit"); }
API int nvmlInit_v2(void) { return init("nvmlInit"); }
API int nvmlShutdown(void) {
    READY();
    if (!code) opened--;
    return leave(code);
}
API const char *nvmlErrorString(int code) { return code ? "an error of the fake" : "Success"; }

API int nvmlDeviceGetCount_v2(unsigned *count) {
    READY();
    *count = state->gpus;
    return leave(code);
}

static device given_out(int i) {
    handles[i].pid = getpid();
    return (device)&handles[i];
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *d) {
    READY();
    if (!code && index >= (unsigned)state->gpus) code = INVALID_ARGUMENT;
    if (!code && state->gpu[index].lost) code = GPU_IS_LOST;
    if (!code) *d = given_out(2 * index);
    return leave(code);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, device *d) {
    READY();
    if (code) return leave(code);
    for (int i = 0; i < state->gpus; i++) {
        int is_mig = strcmp(uuid, state->gpu[i].uuid) != 0;
        if (is_mig && strcmp(uuid, state->gpu[i].mig_uuid)) continue;
        *d = given_out(2 * i + is_mig);
        return leave(state->gpu[i].lost ? GPU_IS_LOST : OK);
    }
    return leave(NOT_FOUND);
}

static int text(char *to, unsigned room, const char *from) {
    if (strlen(from) >= room) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}
API int nvmlDeviceGetUUID(device d, char *uuid, unsigned room) {
    ON_GPU(d);
    return leave(text(uuid, room, d->is_mig ? g->mig_uuid : g->uuid));
}
API int nvmlDeviceGetName(device d, char *name, unsigned room) {
    ON_GPU(d);
    char mig[80];
    strcpy(mig, g->name);
    if (d->is_mig) strcat(mig, " MIG 1g.5gb");
    return leave(text(name, room, mig));
}

API int nvmlSystemGetDriverVersion(char *version, unsigned room) {
    READY();
    return leave(code ? code : text(version, room, "550.54.15"));
}
API int nvmlDeviceGetArchitecture(device d, unsigned *architecture) {
    ON_GPU(d);
    *architecture = g->has_counter ? 5 : 4; /* Volta, Pascal */
    return leave(OK);
}

API int nvmlDeviceGetTotalEnergyConsumption(device d, unsigned long long *mj) {
    ON_WHOLE_GPU(d);
    if (!g->has_counter) return leave(NOT_SUPPORTED);
    *mj = (unsigned long long)g->counter_mj;
    return leave(OK);
}
API int nvmlDeviceGetPowerUsage(device d, unsigned *mw) {
    ON_WHOLE_GPU(d);
    if (!g->has_power) return leave(NOT_SUPPORTED);
    *mw = (unsigned)lround(drawn_w(g) * 1000);
    return leave(OK);
}
API int nvmlDeviceGetUtilizationRates(device d, unsigned rates[2]) { /* of the GPU, of its memory */
    ON_WHOLE_GPU(d);
    if (g->busy_percent < 0) return leave(NOT_SUPPORTED);
    rates[0] = g->resting ? 0 : (unsigned)lround(g->busy_percent);
    rates[1] = rates[0] / 2;
    return leave(OK);
}
struct sample { unsigned long long at_us; union { double d; unsigned u; unsigned long long ull; } value; };
API int nvmlDeviceGetSamples(device d, unsigned kind, unsigned long long since_us, int *type, unsigned *count,
                             struct sample *found) { /* one each 200 ms, the last 70 */
    ON_WHOLE_GPU(d);
    if (g->busy_percent < 0 || !g->has_samples || kind != 1) return leave(NOT_SUPPORTED);
    unsigned long long newest = (unsigned long long)(g->at_s * 5), first = newest > 70 ? newest - 69 : 1;
    unsigned room = found ? *count : 0;
    if (first < since_us / 200000 + 1) first = since_us / 200000 + 1;
    *type = 1; /* unsigned */
    *count = newest >= first ? (unsigned)(newest - first + 1) : 0;
    if (!*count) return leave(NOT_FOUND);
    if (found && room < *count) return leave(INSUFFICIENT_SIZE);
    for (unsigned i = 0; found && i < *count; i++)
        found[i] = (struct sample){(first + i) * 200000, {.u = (unsigned)lround(g->busy_percent)}};
    return leave(OK);
}
struct violation { unsigned long long reference_us, violation_ns; };
API int nvmlDeviceGetViolationStatus(device d, unsigned policy, struct violation *found) {
    ON_WHOLE_GPU(d);
    if (!g->has_violations || policy) return leave(NOT_SUPPORTED); /* of power alone */
    *found = (struct violation){(unsigned long long)(g->at_s * 1e6), (unsigned long long)g->capped_ns};
    return leave(OK);
}
API int nvmlDeviceGetCurrentClocksEventReasons(device d, unsigned long long *reasons) {
    ON_WHOLE_GPU(d);
    *reasons = (unsigned)g->reasons | (g->demand_w > fmax(g->in_force_w, g->floor_w) ? 4u : 0u);
    return leave(OK);
}
static int clock_of(device d, unsigned kind, double mhz, unsigned *found) {
    if (d->is_mig || kind != 1) return NOT_SUPPORTED; /* of the multiprocessors alone */
    *found = (unsigned)lround(mhz);
    return OK;
}
#define CLOCK(function, mhz) \
    API int function(device d, unsigned kind, unsigned *found) { ON_GPU(d); return leave(clock_of(d, kind, mhz, found)); }
CLOCK(nvmlDeviceGetClockInfo, g->clock_mhz)
CLOCK(nvmlDeviceGetMaxClockInfo, g->max_clock_mhz)

#define MILLIWATTS(function, watts) \
    API int function(device d, unsigned *mw) { \
        ON_WHOLE_GPU(d); \
        *mw = (unsigned)lround((watts) * 1000); \
        return leave(OK); \
    }
MILLIWATTS(nvmlDeviceGetPowerManagementLimit, g->limit_w)
MILLIWATTS(nvmlDeviceGetPowerManagementDefaultLimit, g->default_w)
MILLIWATTS(nvmlDeviceGetEnforcedPowerLimit, enforced_w(g))
API int nvmlDeviceGetPowerManagementLimitConstraints(device d, unsigned *min_mw, unsigned *max_mw) {
    ON_WHOLE_GPU(d);
    *min_mw = (unsigned)lround(g->min_w * 1000);
    *max_mw = (unsigned)lround(g->max_w * 1000);
    return leave(OK);
}

API int nvmlDeviceSetPowerManagementLimit(device d, unsigned mw) {
    struct gpu *g;
    int code = begin_on(__func__, d, &g);
    if (!state || !opened) return UNINITIALIZED;
    if (!code && d->is_mig) code = NOT_SUPPORTED;
    if (!code && (!g->may_set || (g->may_set == 2 && !getenv("FAKE_NVML_ROOT")))) code = NO_PERMISSION;
    if (!code && (mw < lround(g->min_w * 1000) || mw > lround(g->max_w * 1000))) code = INVALID_ARGUMENT;
    if (!code && !g->deaf) g->limit_w = mw / 1000.0;
    struct set *s = &state->set[state->sets_done++ % SETS]; /* refused calls too: they reached the library */
    s->gpu = d->index;
    s->pid = getpid();
    s->code = code;
    s->limit_w = mw / 1000.0;
    return leave(code);
}

struct current_profiles { unsigned version, known[8], requested[8], enforced[8]; };
API int nvmlDeviceWorkloadPowerProfileGetCurrentProfiles(device d, struct current_profiles *found) {
    ON_WHOLE_GPU(d);
    if (!g->has_power_profiles) return leave(NOT_SUPPORTED);
    if (found->version != (1u << 24 | sizeof *found)) return leave(INVALID_ARGUMENT);
    memcpy(found->enforced, g->enforced_profiles, sizeof found->enforced);
    return leave(OK);
}

API int nvmlDeviceGetMigMode(device d, unsigned *current, unsigned *pending) {
    ON_WHOLE_GPU(d);
    if (!g->has_mig_mode) return leave(NOT_SUPPORTED);
    *current = *pending = g->mig_enabled;
    return leave(OK);
}

struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };
static int processes(const struct gpu *g, unsigned *count, struct process *to) {
    unsigned room = *count;
    *count = g->processes;
    if (!g->processes) return OK;
    if (!to || room < (unsigned)g->processes) return INSUFFICIENT_SIZE;
    for (int i = 0; i < g->processes; i++) to[i] = (struct process){i == 0 && g->own_pid ? (unsigned)g->own_pid : 4000000u + i, 1 << 20, ~0u, ~0u}; /* host pids */
    return OK;
}
#define PROCESSES(function) \
    API int function(device d, unsigned *count, struct process *to) { ON_GPU(d); return leave(processes(g, count, to)); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
