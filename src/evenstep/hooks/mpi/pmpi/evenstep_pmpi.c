/* Record every collective and message of an MPI program and pass it on to the library (PMPI).
 *
 * Preloaded, it writes two files per rank into EVENSTEP_OUT/attempt-NNN: rank-NNNNN.calls, a mapped
 * ring of `struct call`, and rank-NNNNN.ranks, lines of JSON that describe the rank and its
 * communicators. `evenstep run` makes a spool of them when the program has ended, killed or not: a
 * call is written when it begins, its end when it ends.
 *
 * It adds no communication. Where it cannot make its files it passes every call on and says so once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum kind { COLLECTIVE = 1, MESSAGE = 2, WAIT = 3, STEP = 6 };
enum op { OTHER, ALL_REDUCE, BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, GATHER, SCATTER,
          ALL_TO_ALL, BARRIER, SEND, RECV };
enum { NOT_BLOCKING = 2, OPEN_CALLS = 4096, NO_PEER = -1 };

struct call {               /* 64 bytes, little-endian; the reader is collect.py */
    uint64_t seq;           /* 1, 2, 3 ...; written last */
    int64_t enter_ns, exit_ns;
    uint64_t bytes_in, bytes_out;
    int64_t cpu_ns;         /* of the process, at the end of a call that blocks */
    int32_t peer, tag;      /* rank in the communicator; of a collective, its root */
    uint16_t communicator;
    uint8_t kind, op, flags, uniform, thread, reserved;
};

static struct call *ring;
static uint64_t capacity, taken;
static FILE *described;
static int keyval = MPI_KEYVAL_INVALID, communicators, world_size;
static pthread_t main_thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct { MPI_Request request; uint64_t seq; } opened[OPEN_CALLS];
static int open_count;

static int64_t now_ns(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * INT64_C(1000000000) + at.tv_nsec;
}

static struct call *at(uint64_t seq) { return &ring[(seq - 1) % capacity]; }

/* -- the files ---------------------------------------------------------------------------------- */

static void refuse(const char *path) {
    fprintf(stderr, "evenstep: this rank is not observed: cannot create %s (%s)\n", path,
            strerror(errno));
}

static void quoted(const char *name, const char *text) {
    fprintf(described, ",\"%s\":\"", name);
    for (; text && *text && *text != '\n'; text++)
        if ((unsigned char)*text >= 32) fprintf(described, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    fputc('"', described);
}

static void quoted_file(const char *name, const char *path) {
    char text[128] = "";
    FILE *file = fopen(path, "r");
    if (file && !fgets(text, sizeof text, file)) text[0] = 0;
    if (file) fclose(file);
    quoted(name, text);
}

static void describe_rank(int rank) {
    static const char *local[] = {"MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"};
    char host[256] = "";
    int local_rank = 0;
    for (int i = 2; i >= 0; i--)
        if (getenv(local[i])) local_rank = atoi(getenv(local[i]));
    gethostname(host, sizeof host - 1);
    fprintf(described, "{\"rank\":%d,\"world\":%d,\"local_rank\":%d,\"pid\":%d", rank, world_size,
            local_rank, (int)getpid());
    fprintf(described, ",\"anchor_monotonic_ns\":%lld,\"anchor_realtime_ns\":%lld",
            (long long)now_ns(CLOCK_MONOTONIC), (long long)now_ns(CLOCK_REALTIME));
    quoted("hostname", host);
    quoted_file("boot_id", "/proc/sys/kernel/random/boot_id");
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    PMPI_Get_library_version(library, &length);
    quoted("library", library);
    fputs("}\n", described);
    fflush(described);
}

static void open_files(void) {
    const char *out = getenv("EVENSTEP_OUT"), *bytes = getenv("EVENSTEP_RING_BYTES");
    const char *attempt = getenv("EVENSTEP_ATTEMPT");
    if (!out || ring) return;
    int rank;
    char path[4096];
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &world_size);
    capacity = (bytes && atoll(bytes) > 65536 ? atoll(bytes) : 16000000) / sizeof(struct call);
    mkdir(out, 0755);
    snprintf(path, sizeof path, "%s/attempt-%03d", out, attempt ? atoi(attempt) : 0);
    mkdir(path, 0755);
    size_t end = strlen(path);
    snprintf(path + end, sizeof path - end, "/rank-%05d.calls", rank);
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0) { refuse(path); return; }
    errno = posix_fallocate(file, 0, capacity * sizeof(struct call));
    void *memory = errno ? MAP_FAILED
        : mmap(NULL, capacity * sizeof(struct call), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    snprintf(path + end, sizeof path - end, "/rank-%05d.ranks", rank);
    if (memory == MAP_FAILED || !(described = fopen(path, "wxe"))) { refuse(path); return; }
    main_thread = pthread_self();
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &keyval, NULL);
    describe_rank(rank);
    ring = memory;
}

/* -- communicators ------------------------------------------------------------------------------ */

static void list_ranks(MPI_Group group, const char *before) {
    int size;
    MPI_Group world;
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    PMPI_Group_size(group, &size);
    for (int i = 0; i < size; i++) {
        int rank;
        PMPI_Group_translate_ranks(group, 1, &i, world, &rank);
        fprintf(described, "%s%d", i ? "," : before, rank);
    }
    PMPI_Group_free(&world);
    PMPI_Group_free(&group);
}

static int describe_communicator(MPI_Comm communicator, int parent, const char *by) {
    char name[MPI_MAX_OBJECT_NAME] = "";
    int length, inter;
    MPI_Group group;
    pthread_mutex_lock(&lock);
    int number = ++communicators;
    PMPI_Comm_get_name(communicator, name, &length);
    PMPI_Comm_test_inter(communicator, &inter);
    fprintf(described, "{\"communicator\":%d,\"parent\":%d", number, parent);
    quoted("by", by);
    quoted("name", name);
    fputs(",\"ranks\":[", described);
    if (inter) {            /* the other side first: its members are the peers */
        PMPI_Comm_remote_group(communicator, &group);
        list_ranks(group, "");
    }
    PMPI_Comm_group(communicator, &group);
    list_ranks(group, inter ? "," : "");
    fputs("]}\n", described);
    fflush(described);
    PMPI_Comm_set_attr(communicator, keyval, (void *)(intptr_t)number);
    pthread_mutex_unlock(&lock);
    return number;
}

static int number_of(MPI_Comm communicator) {
    void *value;
    int known;
    PMPI_Comm_get_attr(communicator, keyval, &value, &known);
    return known ? (int)(intptr_t)value : describe_communicator(communicator, 0, "");
}

static int made(int result, MPI_Comm parent, const char *by, MPI_Comm *child) {
    if (ring && result == MPI_SUCCESS && *child != MPI_COMM_NULL)
        describe_communicator(*child, number_of(parent), by);
    return result;
}

/* -- calls -------------------------------------------------------------------------------------- */

static uint64_t begin(int kind, int op, int flags, MPI_Comm communicator, int peer, int tag,
                      uint64_t bytes_in, uint64_t bytes_out, int uniform) {
    if (!ring || (kind == MESSAGE && peer == MPI_PROC_NULL)) return 0;
    int number = kind == COLLECTIVE || kind == MESSAGE ? number_of(communicator) : 0;
    uint64_t seq = __atomic_add_fetch(&taken, 1, __ATOMIC_RELAXED);
    struct call *call = at(seq);
    call->seq = 0;
    *call = (struct call){.enter_ns = now_ns(CLOCK_MONOTONIC), .bytes_in = bytes_in,
        .bytes_out = bytes_out, .peer = peer, .tag = tag, .communicator = number, .kind = kind,
        .op = op, .flags = flags, .uniform = uniform,
        .thread = !pthread_equal(pthread_self(), main_thread)};
    __atomic_store_n(&call->seq, seq, __ATOMIC_RELEASE);
    return seq;
}

static void finish(uint64_t seq, int64_t exit_ns) {
    if (!seq || at(seq)->seq != seq) return;
    at(seq)->cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    at(seq)->exit_ns = exit_ns;
}

static void finish_message(uint64_t seq, int64_t exit_ns, const MPI_Status *status) {
    if (seq && at(seq)->seq == seq && at(seq)->op == RECV && status) {
        if (at(seq)->peer == MPI_ANY_SOURCE) at(seq)->peer = status->MPI_SOURCE;
        if (at(seq)->tag == MPI_ANY_TAG) at(seq)->tag = status->MPI_TAG;
    }
    finish(seq, exit_ns);
}

static uint64_t size_of(int count, MPI_Datatype type) {
    int size = 0;
    if (ring && type != MPI_DATATYPE_NULL) PMPI_Type_size(type, &size);
    return (uint64_t)size * (count > 0 ? count : 0);
}

static int size_in(MPI_Comm communicator) {
    int size = 1;
    if (ring) PMPI_Comm_size(communicator, &size);
    return size;
}

static int issued(int result, uint64_t seq, MPI_Request *request) {
    if (!seq) return result;
    pthread_mutex_lock(&lock);
    if (open_count < OPEN_CALLS) {
        opened[open_count].request = *request;
        opened[open_count++].seq = seq;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static uint64_t take(MPI_Request request) {
    uint64_t seq = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < open_count && !seq; i++)
        if (opened[i].request == request) {
            seq = opened[i].seq;
            memmove(&opened[i], &opened[i + 1], (--open_count - i) * sizeof opened[0]);
        }
    pthread_mutex_unlock(&lock);
    return seq;
}

#define BLOCKING(kind, op, comm, peer, tag, in, out, uniform, call)                 \
    uint64_t seq = begin(kind, op, 0, comm, peer, tag, in, out, uniform);           \
    int result = call;                                                              \
    finish(seq, now_ns(CLOCK_MONOTONIC));                                           \
    return result;

#define ISSUING(kind, op, comm, peer, tag, in, out, uniform, call)                  \
    uint64_t seq = begin(kind, op, NOT_BLOCKING, comm, peer, tag, in, out, uniform); \
    return issued(call, seq, request);

/* A collective in its two forms: NAME(parameters) and INAME(parameters, request). */
#define BOTH(NAME, INAME, op, root, in, out, uniform, parameters, arguments)                       \
    int MPI_##NAME(PLAIN parameters) {                                                             \
        BLOCKING(COLLECTIVE, op, comm, root, 0, in, out, uniform, PMPI_##NAME(PLAIN arguments))    \
    }                                                                                              \
    int MPI_##INAME(PLAIN parameters, MPI_Request *request) {                                      \
        ISSUING(COLLECTIVE, op, comm, root, 0, in, out, uniform,                                   \
                PMPI_##INAME(PLAIN arguments, request))                                            \
    }
#define PLAIN(...) __VA_ARGS__

#define SEND_ONE const void *sendbuf, int sendcount, MPI_Datatype sendtype
#define RECV_ONE void *recvbuf, int recvcount, MPI_Datatype recvtype
#define SEND_EACH const void *sendbuf, const int sendcounts[], const int sdispls[], MPI_Datatype sendtype
#define RECV_EACH void *recvbuf, const int recvcounts[], const int displs[], MPI_Datatype recvtype
#define SENT (sendbuf == MPI_IN_PLACE ? 0 : size_of(sendcount, sendtype))
#define REDUCED size_of(count, datatype)
#define RECEIVED size_of(recvcount, recvtype)

BOTH(Allreduce, Iallreduce, ALL_REDUCE, NO_PEER, REDUCED, REDUCED, 1,
     (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),
     (sendbuf, recvbuf, count, datatype, op, comm))
BOTH(Reduce, Ireduce, REDUCE, root, REDUCED, REDUCED, 1,
     (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, int root, MPI_Comm comm),
     (sendbuf, recvbuf, count, datatype, op, root, comm))
BOTH(Bcast, Ibcast, BROADCAST, root, REDUCED, REDUCED, 1,
     (void *buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm),
     (buffer, count, datatype, root, comm))
BOTH(Allgather, Iallgather, ALL_GATHER, NO_PEER, RECEIVED, RECEIVED * size_in(comm), 1,
     (SEND_ONE, RECV_ONE, MPI_Comm comm),
     (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm))
BOTH(Allgatherv, Iallgatherv, ALL_GATHER, NO_PEER, SENT, SENT, 0,
     (SEND_ONE, RECV_EACH, MPI_Comm comm),
     (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm))
BOTH(Gather, Igather, GATHER, root, SENT, SENT, 0,
     (SEND_ONE, RECV_ONE, int root, MPI_Comm comm),
     (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm))
BOTH(Gatherv, Igatherv, GATHER, root, SENT, SENT, 0,
     (SEND_ONE, RECV_EACH, int root, MPI_Comm comm),
     (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root, comm))
BOTH(Scatter, Iscatter, SCATTER, root, 0, recvbuf == MPI_IN_PLACE ? 0 : RECEIVED, 0,
     (SEND_ONE, RECV_ONE, int root, MPI_Comm comm),
     (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm))
BOTH(Scatterv, Iscatterv, SCATTER, root, 0, recvbuf == MPI_IN_PLACE ? 0 : RECEIVED, 0,
     (SEND_EACH, RECV_ONE, int root, MPI_Comm comm),
     (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcount, recvtype, root, comm))
BOTH(Alltoall, Ialltoall, ALL_TO_ALL, NO_PEER, RECEIVED * size_in(comm), RECEIVED * size_in(comm), 1,
     (SEND_ONE, RECV_ONE, MPI_Comm comm),
     (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm))
BOTH(Alltoallv, Ialltoallv, ALL_TO_ALL, NO_PEER, 0, 0, 0,
     (SEND_EACH, RECV_EACH, MPI_Comm comm),
     (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, displs, recvtype, comm))
BOTH(Reduce_scatter, Ireduce_scatter, REDUCE_SCATTER, NO_PEER, 0, 0, 0,
     (const void *sendbuf, void *recvbuf, const int counts[], MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),
     (sendbuf, recvbuf, counts, datatype, op, comm))
BOTH(Reduce_scatter_block, Ireduce_scatter_block, REDUCE_SCATTER, NO_PEER, REDUCED * size_in(comm), REDUCED, 1,
     (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),
     (sendbuf, recvbuf, count, datatype, op, comm))
BOTH(Scan, Iscan, OTHER, NO_PEER, REDUCED, REDUCED, 1,
     (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),
     (sendbuf, recvbuf, count, datatype, op, comm))
BOTH(Exscan, Iexscan, OTHER, NO_PEER, REDUCED, REDUCED, 1,
     (const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm),
     (sendbuf, recvbuf, count, datatype, op, comm))
BOTH(Barrier, Ibarrier, BARRIER, NO_PEER, 0, 0, 1, (MPI_Comm comm), (comm))

/* -- messages ----------------------------------------------------------------------------------- */

#define SENDING(NAME)                                                                              \
    int MPI_##NAME(const void *buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm) { \
        uint64_t nbytes = size_of(count, datatype);                                                \
        BLOCKING(MESSAGE, SEND, comm, dest, tag, nbytes, nbytes, 0,                                \
                 PMPI_##NAME(buf, count, datatype, dest, tag, comm))                               \
    }
#define SENDING_LATER(NAME)                                                                        \
    int MPI_##NAME(const void *buf, int count, MPI_Datatype datatype, int dest, int tag,           \
                   MPI_Comm comm, MPI_Request *request) {                                          \
        uint64_t nbytes = size_of(count, datatype);                                                \
        ISSUING(MESSAGE, SEND, comm, dest, tag, nbytes, nbytes, 0,                                 \
                PMPI_##NAME(buf, count, datatype, dest, tag, comm, request))                       \
    }
SENDING(Send)
SENDING(Ssend)
SENDING(Bsend)
SENDING(Rsend)
SENDING_LATER(Isend)
SENDING_LATER(Issend)
SENDING_LATER(Ibsend)
SENDING_LATER(Irsend)

int MPI_Recv(void *buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
             MPI_Status *status) {
    MPI_Status own;
    MPI_Status *filled = status == MPI_STATUS_IGNORE ? &own : status;
    uint64_t nbytes = size_of(count, datatype);
    uint64_t seq = begin(MESSAGE, RECV, 0, comm, source, tag, nbytes, nbytes, 0);
    int result = PMPI_Recv(buf, count, datatype, source, tag, comm, filled);
    finish_message(seq, now_ns(CLOCK_MONOTONIC), filled);
    return result;
}

int MPI_Irecv(void *buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
              MPI_Request *request) {
    uint64_t nbytes = size_of(count, datatype);
    ISSUING(MESSAGE, RECV, comm, source, tag, nbytes, nbytes, 0,
            PMPI_Irecv(buf, count, datatype, source, tag, comm, request))
}

int MPI_Sendrecv(const void *sendbuf, int sendcount, MPI_Datatype sendtype, int dest, int sendtag,
                 void *recvbuf, int recvcount, MPI_Datatype recvtype, int source, int recvtag,
                 MPI_Comm comm, MPI_Status *status) {
    MPI_Status own;
    MPI_Status *filled = status == MPI_STATUS_IGNORE ? &own : status;
    uint64_t sent = size_of(sendcount, sendtype), received = size_of(recvcount, recvtype);
    uint64_t first = begin(MESSAGE, SEND, 0, comm, dest, sendtag, sent, sent, 0);
    uint64_t second = begin(MESSAGE, RECV, 0, comm, source, recvtag, received, received, 0);
    int result = PMPI_Sendrecv(sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount,
                               recvtype, source, recvtag, comm, filled);
    int64_t exit_ns = now_ns(CLOCK_MONOTONIC);
    finish(first, exit_ns);
    finish_message(second, exit_ns, filled);
    return result;
}

/* -- waits -------------------------------------------------------------------------------------- */

int MPI_Wait(MPI_Request *request, MPI_Status *status) {
    MPI_Status own;
    MPI_Status *filled = status == MPI_STATUS_IGNORE ? &own : status;
    uint64_t seq = ring ? take(*request) : 0;
    uint64_t wait = seq ? begin(WAIT, 0, 0, MPI_COMM_NULL, 0, 0, 0, 0, 0) : 0;
    int result = PMPI_Wait(request, filled);
    int64_t exit_ns = now_ns(CLOCK_MONOTONIC);
    finish(wait, exit_ns);
    finish_message(seq, exit_ns, filled);
    return result;
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
    MPI_Status own;
    MPI_Status *filled = status == MPI_STATUS_IGNORE ? &own : status;
    MPI_Request before = *request;
    int result = PMPI_Test(request, flag, filled);
    if (ring && *flag) finish_message(take(before), now_ns(CLOCK_MONOTONIC), filled);
    return result;
}

int MPI_Request_free(MPI_Request *request) {
    if (ring) take(*request);
    return PMPI_Request_free(request);
}

/* Several requests: `chosen` lists the indices of the `ended` ones; NULL means the first ones. */
struct several { MPI_Request *before; MPI_Status *filled; uint64_t wait; };

static struct several collect(int count, MPI_Request requests[], MPI_Status *statuses, int room, int waits) {
    struct several batch = {NULL, statuses, 0};
    if (!ring || count < 1) return batch;
    batch.before = malloc(count * sizeof(MPI_Request));
    if (batch.before) memcpy(batch.before, requests, count * sizeof(MPI_Request));
    if (statuses == MPI_STATUSES_IGNORE) batch.filled = malloc(room * sizeof(MPI_Status));
    if (!batch.filled) batch.filled = statuses;
    if (waits) batch.wait = begin(WAIT, 0, 0, MPI_COMM_NULL, 0, 0, 0, 0, 0);
    return batch;
}

static void over(struct several batch, MPI_Status *statuses, int ended, const int *chosen) {
    int64_t exit_ns = now_ns(CLOCK_MONOTONIC);
    finish(batch.wait, exit_ns);
    for (int i = 0; batch.before && i < ended; i++)
        finish_message(take(batch.before[chosen ? chosen[i] : i]), exit_ns,
                       batch.filled == MPI_STATUSES_IGNORE ? NULL : &batch.filled[i]);
    if (batch.filled != statuses) free(batch.filled);
    free(batch.before);
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[]) {
    struct several batch = collect(count, requests, statuses, count, 1);
    int result = PMPI_Waitall(count, requests, batch.filled);
    over(batch, statuses, count, NULL);
    return result;
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[]) {
    struct several batch = collect(count, requests, statuses, count, 0);
    int result = PMPI_Testall(count, requests, flag, batch.filled);
    over(batch, statuses, *flag ? count : 0, NULL);
    return result;
}

int MPI_Waitany(int count, MPI_Request requests[], int *index, MPI_Status *status) {
    struct several batch = collect(count, requests, status, 1, 1);
    int result = PMPI_Waitany(count, requests, index, batch.filled);
    over(batch, status, *index != MPI_UNDEFINED, index);
    return result;
}

int MPI_Testany(int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status) {
    struct several batch = collect(count, requests, status, 1, 0);
    int result = PMPI_Testany(count, requests, index, flag, batch.filled);
    over(batch, status, *flag && *index != MPI_UNDEFINED, index);
    return result;
}

int MPI_Waitsome(int count, MPI_Request requests[], int *ended, int indices[], MPI_Status statuses[]) {
    struct several batch = collect(count, requests, statuses, count, 1);
    int result = PMPI_Waitsome(count, requests, ended, indices, batch.filled);
    over(batch, statuses, *ended == MPI_UNDEFINED ? 0 : *ended, indices);
    return result;
}

int MPI_Testsome(int count, MPI_Request requests[], int *ended, int indices[], MPI_Status statuses[]) {
    struct several batch = collect(count, requests, statuses, count, 0);
    int result = PMPI_Testsome(count, requests, ended, indices, batch.filled);
    over(batch, statuses, *ended == MPI_UNDEFINED ? 0 : *ended, indices);
    return result;
}

/* -- communicators made, begin and end ---------------------------------------------------------- */

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *child) {
    return made(PMPI_Comm_dup(comm, child), comm, "Dup", child);
}
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *child) {
    return made(PMPI_Comm_split(comm, color, key, child), comm, "Split", child);
}
int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *child) {
    return made(PMPI_Comm_split_type(comm, type, key, info, child), comm, "Split_type", child);
}
int MPI_Comm_create(MPI_Comm comm, MPI_Group group, MPI_Comm *child) {
    return made(PMPI_Comm_create(comm, group, child), comm, "Create", child);
}
int MPI_Comm_create_group(MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *child) {
    return made(PMPI_Comm_create_group(comm, group, tag, child), comm, "Create_group", child);
}
int MPI_Cart_create(MPI_Comm comm, int dims, const int sizes[], const int periods[], int reorder,
                    MPI_Comm *child) {
    return made(PMPI_Cart_create(comm, dims, sizes, periods, reorder, child), comm, "Create_cart", child);
}
int MPI_Cart_sub(MPI_Comm comm, const int remain[], MPI_Comm *child) {
    return made(PMPI_Cart_sub(comm, remain, child), comm, "Sub", child);
}

int MPI_Init(int *argc, char ***argv) {
    int result = PMPI_Init(argc, argv);
    open_files();
    return result;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int result = PMPI_Init_thread(argc, argv, required, provided);
    open_files();
    return result;
}

/* The standard's own call for profilers: MPI_Pcontrol(1) ends a step, and then only it does. */
int MPI_Pcontrol(const int level, ...) {
    if (level == 1) finish(begin(STEP, 0, 0, MPI_COMM_NULL, 0, 0, 0, 0, 0), now_ns(CLOCK_MONOTONIC));
    return MPI_SUCCESS;
}

int MPI_Finalize(void) {
    if (ring) {
        fprintf(described, "{\"closed_ns\":%lld}\n", (long long)now_ns(CLOCK_MONOTONIC));
        fclose(described);
        ring = NULL;
    }
    return PMPI_Finalize();
}
