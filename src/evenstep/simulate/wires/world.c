/* Jobs as graphs of operations, on links that are shared max-min fairly.

   Two parts. The data flow: every rank carries out the streams of its graph as far as possible,
   ahead of the clock, and stops where an operation waits for others. The network: messages that may
   share a link are a fluid; rates change only at events, when a message comes or goes. A collective
   whose links carry no other traffic needs no events: once the last rank of a group has entered, all
   ends follow from one recurrence.

   Times are ns and rates bytes per ns (GB/s), both double. Compiled without contraction of
   multiplications and additions, so that the same world gives the same bytes everywhere.
   `world_python.py` is the same in Python; tests hold them equal. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;
typedef int32_t i32;

enum { COMPUTE, COLLECTIVE, SLOWED, DROP, URGENT };
enum { STUCK = -1, PAUSED = -2 };

static const double SAME_NS = 1e-6, SAME_SHARE = 1e-15; /* moments closer than this are one */
static const double EQUAL = 1e-10;                      /* of rates */
static const double STEADY = 1e-14;                     /* of a round's length */
static const double LEAST_SHARE = 0.05; /* of a link, left by steady messages */

static double larger(double a, double b) { return a > b ? a : b; } /* neither is NaN */
static double smaller(double a, double b) { return a < b ? a : b; }

static void *allocate(i64 count, size_t size) {
    void *found = calloc(count > 0 ? (size_t)count : 1, size);
    if (!found) abort();
    return found;
}
static void *resize(void *old, i64 count, size_t size) {
    void *found = realloc(old, (size_t)count * size);
    if (!found) abort();
    return found;
}
static void *copy_of(const void *from, i64 count, size_t size) {
    void *found = allocate(count, size);
    if (count > 0) memcpy(found, from, (size_t)count * size);
    return found;
}

/* -- what does not change ----------------------------------------------------------------------- */

typedef struct { /* entries of item i are entry[start[i]] to entry[start[i + 1] - 1] */
    i32 *start, *entry;
} Lists;

enum { KINDS = 16, BUNDLES = 16 }; /* lengths of hops; bundles of a sender in a round */
enum { ABSENT, STALLED, TRAIN, AWAITING, FLYING, OVER }; /* of a point */

typedef struct { /* hops of rows of a ring, by message */
    double *hop, *rest, *worst; /* rest: from here to the next point; worst: the longest of these */
    double *lead, *top;         /* lead: from the point before to here; top: longest until here */
    i32 *kind;                  /* of worst */
    i32 kinds;
    double length[KINDS];
} Hops;

typedef struct { /* deliveries of rounds from `round` on, a period apart */
    i32 round;
    double first, period;
} Piece;

typedef struct { /* messages that are under way together */
    i32 count, gates, ring; /* gates: participants; ring: length of each row, 0 where it is none */
    int posted;
    i32 *gate, *other; /* participant that sends; participant that also waits, -1 none */
    double *bytes, *latency, *hop; /* hop: duration without other traffic, closed */
    double *narrow, *own;          /* capacity of the narrowest link of a route, of its own ones */
    double *peak;                  /* highest rate so far, for links of its own */
    i64 *route;                    /* count + 1: links on which others may be at the same time */
    i32 *link, *delay;             /* delay: number of its latency */
    i32 *whole;                    /* of its time, where others cannot change it; -1: none */
    Lists alone;                   /* links of its own */
    i32 points;                    /* number of messages that may meet others */
    i32 *bundle_of, *trunk, saved; /* bundle of each message, -1: none; links that a bundle's messages
                                      have in common, first on their routes; messages less bundles */
    Lists bundle;                  /* their messages */
    Hops *hops;                             /* of rings of which only points are followed */
    Lists by_gate, by_other, by_group;      /* messages; by_group: rows of a ring */
    i32 *need;                              /* of each participant: messages to wait for */
} Stage;

typedef struct {
    i32 participants, groups, rounds, spared;
    int closed, joined; /* joined: no rank begins before the last of the group has entered */
    int spliced;        /* few messages of its rings share links; -1: not looked at yet */
    i32 *rank, *of_rank;   /* rank of each participant; participant of each rank of a group */
    i32 *group;            /* of each rank, -1: no member */
    Lists members;         /* participants of each group */
    Stage **stages;        /* distinct ones, in order */
    i32 *repeats, *stage_of;
    i32 stage_count;
    double launch, steady, weight; /* weight: of its messages, in shares of a link */
    int lasting; /* messages keep their shares for as many ns as they have bytes */
    struct Instance **spare; /* closed or spliced ones that are over, whose memory is used again */
    i32 spares;
} Flow;

typedef struct {
    i32 roles, streams, used, instances, widest; /* used: streams */
    i32 *role; /* of each rank of the job */
    i32 *start; /* operations of each role */
    i32 *kind, *instance, *soft;
    i32 *lane_start, *lane; /* operations of (role, stream) in order */
    i32 *plain;             /* of each of these: computations without needs from it on */
    i32 *unseen;            /* of each role: how many of its first stream 0 does before any is needed */
    i32 *need_start, *need, *back; /* operations needed, and of how many steps before */
    i32 *flow;              /* of each instance */
} Graph;

/* -- what changes ------------------------------------------------------------------------------- */

typedef struct Step Step;
typedef struct Point Point;

typedef struct Instance { /* one collective of one step */
    Flow *flow;
    Step *step;
    i32 job, open; /* open: ranks that have no end yet */
    i32 number;    /* in its step */
    int is_urgent, waits; /* waits: for its turn */
    double scale;
    double *entry; /* of each participant */
    i32 *operation, *count, *at, **need, *left;
    char **apart; /* of each round, by message: sent by itself, though of a bundle; NULL: none is */
    Hops *hops;        /* where only points are followed */
    Point **point_of, *points; /* the next of each message; all */
    i32 point_count;
} Instance;

struct Step {
    Graph *graph;
    /* memory of the caller, a row of ranks for each operation: duration, entry, end (NAN: none) */
    double *value, *enter, *end;
    i64 stride; /* from row to row */
    Instance **instance;
    double *scale;
    i64 open;   /* operations that have no end */
};

typedef struct {
    i32 first, ranks, fed, taken, lag, streams; /* streams: in use so far */
    int final;
    double slowdown, free; /* free: when the last urgent collective was over; INFINITY: not yet */
    double soonest;        /* when a rank needs a step, or its durations in it */
    Step **steps; /* by number; NULL once taken */
    Instance **ready; /* urgent ones that wait for their turn */
    i32 ready_count;
} Job;

typedef struct { /* a stream of a rank */
    double until, ready;
    const double *awaited; /* the end that it waits for; NULL: none known */
    i32 step, at; /* of its next operation */
    i32 needs_met; /* needs of its next operation that are over; `ready`: the latest of these */
    i32 in_collective; /* its operation is a collective in flight, whose end is awaited */
} Lane;

typedef struct {
    double begun; /* when it began its step */
    i32 job;
    char queued;
} Rank;

typedef struct { /* a message under way */
    double rate, weight; /* in shares of a link; 0: a steady rate */
    const i32 *link;     /* of its route */
    i32 hops, bottleneck; /* -1: none of these links */
    i32 seen, message;   /* seen: by the solver */
    double left, since;
    Stage *stage;
    Instance *of;
    Point *point, *pair; /* its sender; the first of the trains that it shares links with */
    i32 round;
    int is_early; /* its end is looked for again at the time it is said to have */
    i32 bundle, members, listed; /* a bundle: its number, -1: a message; members; place in `bundled` */
} Active;

typedef struct { /* the first of some items: by key, then by `order`, or by number without it */
    struct { double key; i32 item; } *entry;
    i32 count, room, *place; /* place: of each item, -1: it is not there */
    i64 *order;
} Heap;

typedef struct {
    i32 *active, count, room, stopped; /* stopped: messages whose bottleneck it is */
    i32 branches; /* messages of bundles that take it without the others: none where it is `hot` */
    i32 mark, at;                      /* while rates are solved: seen, and its place in `filling` */
    double capacity, load, steady, peak;
    double fair;  /* of the capacity: for messages without a steady rate */
    double level; /* of messages that it stopped: what each unit of weight has */
    int dirty, all, hot, risen;
    Point **point; /* trains on it */
    i32 points, point_room;
} Link;

typedef struct { /* of a link, while rates are solved */
    double rest, heavy; /* what is left of it; weight of members not frozen */
    double least;       /* of its members' own limits, for each unit of weight */
    i32 link, on, unfrozen, head; /* on: its members */
    i32 held; /* other messages that it stopped so far */
    int is_searched; /* for messages that have more than it leaves */
} Filling;
typedef struct { /* a message whose rate is solved */
    double rate, weight, limit; /* limit: of the narrowest link without other messages */
    i32 active, own, stop;      /* own: that link, -1: none that others may be on */
    i32 seat, last;             /* its seats: from `seat` to before `last` */
} Member;
typedef struct { /* a member on a link; next: seat of the member before it there */
    i32 member, at, next;
} Seat;
typedef struct {
    double time;
    Instance *of;
    i32 round, message;
} Delivery;
typedef struct {
    double latency;
    Delivery *queue;
    i64 head, tail, room;
} Delay;

typedef struct { /* ranks of a point's segment whose ends are published: from `first` on */
    Point *point;
    i32 first, count;
} Run;

typedef struct { /* what happens at a time: a rank enters, or goes on; a point goes on, or publishes */
    Instance *of;
    Point *point;
    i32 rank, *slot; /* slot: where its number is kept, NULL: nowhere */
} Event;

typedef struct {
    i32 links, ranks, jobs;
    double goodput, now, sent; /* sent: bytes of the first job, of messages that are followed */
    Job *job;
    Link *link;
    i32 *present; /* messages of each job on each link, where goodput is lost */
    Flow **flows;
    Graph **graphs;
    i32 flow_count, graph_count;
    /* ranks */
    i32 streams;
    Rank *rank;
    Lane *lane; /* of each rank, stream by stream */
    i32 *queue, queue_count;
    Run *run; /* to be resumed together, before those in the queue */
    i32 run_count, run_room, *together;
    /* network */
    Active *active;
    i32 *free_list, active_room, free_count, pairs; /* pairs: active messages with trains */
    Heap endings, events; /* active messages by when they leave the wire; events by time */
    Event *event;
    i32 *event_free, event_free_count;
    i64 event_number;
    Delay *delays;
    i32 delay_count;
    i64 delivering; /* messages in the queues of delays */
    i32 *dirty, dirty_count, *fresh, fresh_count, fresh_room;
    i32 *bundled, bundled_count, *risen, risen_count; /* active bundles; links whose load rose */
    i64 followed, rated; /* messages sent one by one, and trains; rates solved: the cost of a run */
    Point **point_dirty; /* trains on whose links traffic came or went */
    i32 point_number, point_dirty_count, point_dirty_room;
    /* work space of the solver */
    Filling *filling;
    Member *member;
    Seat *seats;
    Heap levels; /* links by level */
    i32 stamp, seat_count, seat_room, members, touched;
    /* and of recurrences */
    double *here, *there, *sum;
    i32 space;
} World;

struct Point {
    Instance *of;
    Point *before, *after;
    i32 id, message, mode;
    i32 first, length, row, ring; /* messages since the point before: first of them, how many */
    i32 due, publish;             /* its events: the next of its own, and to publish ends; -1: none */
    /* rounds `round` to `round + count - 1` begin at `begin`, a period apart */
    i32 round, count;
    double begin, period, on, hop, rate; /* on: of a hop, the time on the wire */
    double alone;                        /* the same without other traffic */
    double came;                         /* delivery of the round before */
    i32 partner;                         /* message that it shares its links with */
    Point *sharer;                       /* the next train that the partner shares links with */
    double beside, apart;                /* rates of the partner beside one of these and apart */
    Piece *piece;
    i32 pieces, room, known; /* known: rounds whose deliveries are known */
    i32 read;                /* piece of the point before that was read last */
    double folded;           /* the latest chain from pieces before that */
    i32 near, missing, left; /* entries not yet used; not known; ends not yet published */
    double best[KINDS];
    i32 took, took_kind; /* entry that a look ahead used, to be restored */
    double took_best;
    int waits, is_dirty;
    double *early; /* ends as far as entries of the segment decide them */
    double top, best_past; /* while ends are published: longest hop, latest of pieces before `past` */
    i32 past;
    int is_early;  /* whether these are known */
};

static double *cell(const Step *s, double *rows, i32 rank, i32 operation) {
    return &rows[operation * s->stride + rank];
}

static Lane *lane_of(const World *w, i32 rank, i32 stream) {
    return &w->lane[(i64)stream * w->ranks + rank];
}

static void lists_free(Lists *lists) { free(lists->start); free(lists->entry); }

static Lists lists_of(i32 items, i32 count, const i32 *key) {
    Lists found = {allocate(items + 1, sizeof(i32)), allocate(count, sizeof(i32))};
    for (i32 i = 0; i < count; i++) if (key[i] >= 0) found.start[key[i] + 1]++;
    for (i32 i = 0; i < items; i++) found.start[i + 1] += found.start[i];
    i32 *fill = copy_of(found.start, items + 1, sizeof(i32));
    for (i32 i = 0; i < count; i++) if (key[i] >= 0) found.entry[fill[key[i]]++] = i;
    free(fill);
    return found;
}

/* -- heaps -------------------------------------------------------------------------------------- */

static void heap_room(Heap *h, i32 room, int is_ordered) {
    h->entry = resize(h->entry, room, sizeof *h->entry);
    h->place = resize(h->place, room, sizeof(i32));
    if (is_ordered) h->order = resize(h->order, room, sizeof(i64));
    while (h->room < room) h->place[h->room++] = -1;
}
static void heap_free(Heap *h) { free(h->entry), free(h->place), free(h->order); }

static double soonest_of(const Heap *h) { return h->count ? h->entry[0].key : INFINITY; }

static int precedes(const Heap *h, double key, i32 item, i32 place) {
    double other = h->entry[place].key;
    i32 than = h->entry[place].item;
    if (key != other) return key < other;
    return h->order ? h->order[item] < h->order[than] : item < than;
}
static void heap_move(Heap *h, i32 from, i32 to) {
    h->entry[to] = h->entry[from], h->place[h->entry[to].item] = to;
}
/* Insert an item at a place and move it up or down from there. */
static void heap_insert(Heap *h, double key, i32 item, i32 place) {
    for (; place && precedes(h, key, item, (place - 1) / 4); place = (place - 1) / 4)
        heap_move(h, (place - 1) / 4, place);
    for (;;) {
        i32 first = 4 * place + 1, best = first;
        if (first >= h->count) break;
        for (i32 c = first + 1; c < first + 4 && c < h->count; c++)
            if (precedes(h, h->entry[c].key, h->entry[c].item, best)) best = c;
        if (precedes(h, key, item, best)) break;
        heap_move(h, best, place);
        place = best;
    }
    h->entry[place].key = key, h->entry[place].item = item, h->place[item] = place;
}
/* Set the key of an item, which may be new. */
static void heap_set(Heap *h, i32 item, double key) {
    heap_insert(h, key, item, h->place[item] < 0 ? h->count++ : h->place[item]);
}
static void heap_drop(Heap *h, i32 item) {
    i32 place = h->place[item], last = h->entry[--h->count].item;
    double key = h->entry[h->count].key;
    h->place[item] = -1;
    if (last != item) heap_insert(h, key, last, place);
}

/* Let something happen at a time; where its slot has a number, that event moves there. */
static void happen_at(World *w, double time, Event event) {
    i32 n = event.slot ? *event.slot : -1;
    if (n < 0) {
        if (!w->event_free_count) {
            i32 old = w->events.room, room = 2 * old + 64;
            heap_room(&w->events, room, 1);
            w->event = resize(w->event, room, sizeof(Event));
            w->event_free = resize(w->event_free, room, sizeof(i32));
            for (i32 i = room; i-- > old;) w->event_free[w->event_free_count++] = i;
        }
        n = w->event_free[--w->event_free_count];
    }
    if (event.slot) *event.slot = n;
    w->event[n] = event, w->events.order[n] = w->event_number++;
    heap_set(&w->events, n, time);
}
static void event_drop(World *w, i32 n) {
    if (n < 0) return;
    if (w->event[n].slot) *w->event[n].slot = -1;
    heap_drop(&w->events, n);
    w->event_free[w->event_free_count++] = n;
}
static void due_at(World *w, double time, Point *p) {
    happen_at(w, time, (Event){.point = p, .slot = &p->due});
}

/* -- building ----------------------------------------------------------------------------------- */

World *world_new(i64 links, const double *capacity, double goodput, i64 jobs, const i64 *job_ranks,
                 i64 streams) {
    World *w = allocate(1, sizeof(World));
    w->links = (i32)links, w->jobs = (i32)jobs, w->goodput = goodput;
    w->streams = (i32)streams;
    w->link = allocate(links, sizeof(Link));
    for (i64 l = 0; l < links; l++) w->link[l].capacity = w->link[l].fair = capacity[l];
    w->job = allocate(jobs, sizeof(Job));
    for (i64 j = 0; j < jobs; j++) {
        w->job[j].first = w->ranks, w->job[j].ranks = (i32)job_ranks[j];
        w->job[j].soonest = INFINITY;
        w->ranks += (i32)job_ranks[j];
    }
    w->rank = allocate(w->ranks, sizeof(Rank));
    for (i32 j = 0; j < w->jobs; j++)
        for (i32 r = 0; r < w->job[j].ranks; r++) w->rank[w->job[j].first + r].job = j;
    if (goodput < 1) w->present = allocate(links * jobs, sizeof(i32));
    i64 lanes = (i64)w->ranks * streams;
    w->lane = allocate(lanes, sizeof(Lane));
    for (i64 l = 0; l < lanes; l++) w->lane[l].ready = -INFINITY;
    w->queue = allocate(w->ranks, sizeof(i32)), w->together = allocate(w->ranks, sizeof(i32));
    w->dirty = allocate(links, sizeof(i32)), w->risen = allocate(links, sizeof(i32));
    w->filling = allocate(links, sizeof(Filling)), heap_room(&w->levels, (i32)(links > 0 ? links : 1), 0);
    return w;
}

static i32 delay_number(World *w, double latency) {
    for (i32 d = 0; d < w->delay_count; d++) if (w->delays[d].latency == latency) return d;
    w->delays = resize(w->delays, w->delay_count + 1, sizeof(Delay));
    w->delays[w->delay_count] = (Delay){latency, allocate(64, sizeof(Delivery)), 0, 0, 64};
    return w->delay_count++;
}

/* Work space for recurrences of a flow. */
static void make_space(World *w, i64 ring, i64 participants) {
    i64 size = 5 * ring + participants + w->ranks + 8;
    if (size <= w->space) return;
    w->space = (i32)size;
    w->sum = resize(w->sum, size, sizeof(double)), w->there = resize(w->there, size, sizeof(double));
    w->here = resize(w->here, size, sizeof(double));
}

i64 world_flow(World *w, i64 participants, const i32 *rank, i64 groups, const i32 *group,
               i64 closed, i64 joined, i64 spared, double launch, double steady, double weight,
               i64 lasting) {
    Flow *f = allocate(1, sizeof(Flow));
    f->participants = (i32)participants, f->groups = (i32)groups;
    f->closed = (int)closed, f->joined = (int)joined, f->spliced = -1;
    f->spared = (i32)spared, f->launch = launch, f->steady = steady;
    f->weight = weight, f->lasting = (int)lasting;
    f->rank = copy_of(rank, participants, sizeof(i32));
    f->group = copy_of(group, w->ranks, sizeof(i32));
    f->of_rank = allocate(w->ranks, sizeof(i32));
    i32 *of = allocate(participants, sizeof(i32));
    for (i32 p = 0; p < f->participants; p++) f->of_rank[rank[p]] = p, of[p] = group[rank[p]];
    f->members = lists_of(f->groups, f->participants, of);
    free(of);
    make_space(w, 0, participants);
    w->flows = resize(w->flows, w->flow_count + 1, sizeof(Flow *));
    w->flows[w->flow_count] = f;
    return w->flow_count++;
}

/* Whether others may be on links of a message. */
static int shares(const Stage *s, i32 m) { return s->route[m] < s->route[m + 1]; }

/* Of messages between the same two participants only the longest counts. */
static void merge(Stage *s) {
    Lists by_gate = s->by_gate;
    i32 kept = 0;
    char *gone = allocate(s->count, 1);
    for (i32 m = 0; m < s->count; m++)
        for (i32 k = by_gate.start[s->gate[m]]; k < by_gate.start[s->gate[m] + 1]; k++) {
            i32 n = by_gate.entry[k];
            if (n <= m || gone[m] || gone[n] || s->other[n] != s->other[m]) continue;
            if (s->hop[n] > s->hop[m] || s->latency[n] > s->latency[m]) gone[m] = 1;
            else gone[n] = 1;
        }
    for (i32 m = 0; m < s->count; m++) {
        if (gone[m]) continue;
        s->gate[kept] = s->gate[m], s->other[kept] = s->other[m], s->hop[kept] = s->hop[m];
        s->latency[kept++] = s->latency[m];
    }
    s->count = kept;
    free(gone);
}

/* The links of messages, while a stage is built. */
typedef struct {
    i64 *start;
    i32 *link;
    char *shared; /* others may be there at the same time */
} Routes;

/* Whether two messages leave together, go the same way, and both of their ends wait for both. */
static int are_joint(const Stage *s, const Routes *r, i64 one, i64 other) {
    i64 here = r->start[one], there = r->start[other], hops = r->start[one + 1] - here;
    return one != other && s->gate[one] == s->gate[other] && s->other[one] == s->other[other]
        && s->latency[one] == s->latency[other] && hops == r->start[other + 1] - there
        && !memcmp(r->link + here, r->link + there, (size_t)hops * sizeof(i32));
}

/* A link is shared by the messages of the round, too. But those that are joint, over links that no
   others take, become one. */
static void share_within(const World *w, Stage *s, Routes *r, int may_join) {
    i32 *on = allocate(w->links, sizeof(i32)), kept = 0; /* on: the first message; minus its place */
    char *others = allocate(w->links, 1); /* 1: only joint ones besides the first, 2: any */
    for (i32 m = 0; m < s->count; m++)
        for (i64 h = r->start[m]; h < r->start[m + 1]; h++) {
            i32 *first = &on[r->link[h]];
            if (!*first) *first = m + 1;
            else if (!may_join || !are_joint(s, r, *first - 1, m)) others[r->link[h]] = 2;
            else others[r->link[h]] |= 1;
        }
    for (i32 m = 0; m < s->count; m++) {
        i64 from = r->start[m], hops = r->start[m + 1] - from, to = r->start[kept];
        int is_shared = !hops;
        for (i64 h = from; h < from + hops; h++) is_shared |= r->shared[h] || others[r->link[h]] > 1;
        for (i64 h = from; h < from + hops; h++) r->shared[h] |= is_shared && others[r->link[h]];
        i32 *first = is_shared ? NULL : &on[r->link[from]];
        if (first && *first < 0) {
            s->bytes[-*first - 1] += s->bytes[m];
            continue;
        }
        memmove(r->link + to, r->link + from, (size_t)hops * sizeof(i32));
        memmove(r->shared + to, r->shared + from, (size_t)hops);
        s->gate[kept] = s->gate[m], s->other[kept] = s->other[m], s->hop[kept] = s->hop[m];
        s->bytes[kept] = s->bytes[m], s->latency[kept] = s->latency[m];
        r->start[++kept] = to + hops;
        if (first) *first = -kept;
    }
    s->count = kept;
    free(on), free(others);
}

/* Whether two messages of a sender are of one bundle: alike, and with the same first link. */
static int are_alike(const Stage *s, i32 one, i32 other) {
    return s->bytes[one] == s->bytes[other] && s->latency[one] == s->latency[other]
        && s->own[one] == s->own[other] && s->link[s->route[one]] == s->link[s->route[other]];
}

/* Find the bundles of a stage, and put the links that their messages have in common first. */
static void bundle_up(World *w, Stage *s) {
    i32 first[BUNDLES], number[BUNDLES], bundles = 0;
    i32 *on = allocate(w->links, sizeof(i32)), *route = allocate(w->links, sizeof(i32));
    s->bundle_of = allocate(s->count, sizeof(i32));
    for (i32 m = 0; m < s->count; m++) s->bundle_of[m] = -1;
    for (i32 k = 0, gate = -1, known = 0; k < s->by_gate.start[s->gates]; k++) {
        i32 m = s->by_gate.entry[k], b = 0;
        if (s->gate[m] != gate) gate = s->gate[m], known = 0;
        if (!shares(s, m) || s->bytes[m] <= 0 || s->narrow[m] == INFINITY) continue;
        while (b < known && !are_alike(s, first[b], m)) b++;
        if (b == BUNDLES) continue;
        if (b == known) first[known] = m, number[known++] = bundles++;
        s->bundle_of[m] = number[b];
    }
    s->bundle = lists_of(bundles, s->count, s->bundle_of);
    s->trunk = allocate(bundles, sizeof(i32));
    for (i32 b = 0; b < bundles; b++) {
        const i32 *mine = s->bundle.entry + s->bundle.start[b];
        i32 size = s->bundle.start[b + 1] - s->bundle.start[b];
        for (i32 i = 0; i < size; i++)
            for (i64 h = s->route[mine[i]]; h < s->route[mine[i] + 1]; h++) on[s->link[h]]++;
        for (i32 i = 0; i < size; i++) {
            i64 begin = s->route[mine[i]], end = s->route[mine[i] + 1], at = begin;
            memcpy(route, s->link + begin, (size_t)(end - begin) * sizeof(i32));
            for (int common = 1; common >= 0; common--) {
                for (i64 h = 0; h < end - begin; h++)
                    if ((on[route[h]] == size) == common) s->link[at++] = route[h];
                if (common) s->trunk[b] = (i32)(at - begin);
            }
        }
        for (i32 i = 0; i < size; i++) {
            for (i64 h = s->route[mine[i]]; h < s->route[mine[i] + 1]; h++) on[s->link[h]] = 0;
            if (size == 1) s->bundle_of[mine[i]] = -1;
        }
        s->saved += size - 1;
    }
    free(on), free(route);
}

void world_stage(World *w, i64 flow, i64 count, const i32 *gate, const i32 *other,
                 const double *bytes, const double *latency, const double *hop, const i64 *routes,
                 const i32 *links, const char *others, i64 ring, i64 posted, i64 repeats) {
    Flow *f = w->flows[flow];
    Stage *s = allocate(1, sizeof(Stage));
    make_space(w, ring, f->participants);
    s->count = (i32)count, s->gates = f->participants, s->ring = (i32)ring, s->posted = (int)posted;
    s->gate = copy_of(gate, count, sizeof(i32)), s->other = copy_of(other, count, sizeof(i32));
    s->bytes = copy_of(bytes, count, sizeof(double)), s->hop = copy_of(hop, count, sizeof(double));
    s->latency = copy_of(latency, count, sizeof(double));
    Routes r = {copy_of(routes, count + 1, sizeof(i64)), copy_of(links, routes[count], sizeof(i32)),
                copy_of(others, routes[count], 1)};
    share_within(w, s, &r, !f->closed && !ring && f->steady <= 0 && !f->lasting);
    const i64 *route = r.start;
    const i32 *link = r.link;
    gate = s->gate, other = s->other, bytes = s->bytes, latency = s->latency, count = s->count;
    s->route = allocate(count + 1, sizeof(i64)), s->link = allocate(route[count], sizeof(i32));
    s->alone.start = allocate(count + 1, sizeof(i32));
    s->alone.entry = allocate(route[count], sizeof(i32));
    s->delay = allocate(count, sizeof(i32)), s->whole = allocate(count, sizeof(i32));
    s->peak = allocate(count, sizeof(double));
    s->narrow = allocate(count, sizeof(double)), s->own = allocate(count, sizeof(double));
    s->need = allocate(f->participants, sizeof(i32));
    for (i64 m = 0; m < count; m++) {
        i64 on = s->route[m];
        i32 alone = s->alone.start[m];
        s->need[gate[m]]++;
        if (other[m] >= 0) s->need[other[m]]++;
        s->narrow[m] = s->own[m] = INFINITY;
        for (i64 h = route[m]; h < route[m + 1]; h++) {
            double capacity = w->link[link[h]].capacity;
            s->narrow[m] = smaller(s->narrow[m], capacity);
            if (r.shared[h]) s->link[on++] = link[h];
            else s->alone.entry[alone++] = link[h], s->own[m] = smaller(s->own[m], capacity);
        }
        s->route[m + 1] = on, s->alone.start[m + 1] = alone;
        s->points += shares(s, (i32)m);
        if (f->closed) continue;
        int is_fixed = !shares(s, (i32)m) && s->narrow[m] < INFINITY && f->steady <= 0 && !f->lasting;
        s->delay[m] = delay_number(w, latency[m]), s->whole[m] = -1;
        if (is_fixed && w->delay_count < KINDS)
            s->whole[m] = delay_number(w, latency[m] + bytes[m] / s->narrow[m]);
    }
    free(r.start), free(r.link), free(r.shared);
    s->by_gate = lists_of(f->participants, s->count, gate);
    if (!f->closed && !ring && !posted && f->steady <= 0 && !f->lasting && f->weight == 1 && !w->present)
        bundle_up(w, s);
    s->by_other = lists_of(f->participants, s->count, other);
    if (f->closed && !s->ring) merge(s);
    i32 rows = s->ring ? s->count / s->ring : s->count;
    i32 *of = allocate(rows, sizeof(i32));
    for (i32 row = 0; row < rows; row++)
        of[row] = f->group[f->rank[s->gate[s->ring ? row * s->ring : row]]];
    s->by_group = lists_of(f->groups, rows, of);
    free(of);
    i32 n = f->stage_count++;
    f->stages = resize(f->stages, n + 1, sizeof(Stage *));
    f->repeats = resize(f->repeats, n + 1, sizeof(i32));
    f->stages[n] = s, f->repeats[n] = (i32)repeats;
    if (!f->closed) {
        f->stage_of = resize(f->stage_of, f->rounds + repeats, sizeof(i32));
        for (i64 k = 0; k < repeats; k++) f->stage_of[f->rounds + k] = n;
    }
    f->rounds += (i32)repeats;
}

i64 world_graph(World *w, i64 ranks, const i32 *role, i64 roles, const i32 *start, const i32 *kind,
                const i32 *stream, const i32 *instance, const i32 *soft, const i32 *need_start,
                const i32 *need, const i32 *back, i64 instances, const i32 *flow) {
    Graph *g = allocate(1, sizeof(Graph));
    i32 total = start[roles];
    g->roles = (i32)roles, g->streams = w->streams, g->instances = (i32)instances;
    g->role = copy_of(role, ranks, sizeof(i32)), g->start = copy_of(start, roles + 1, sizeof(i32));
    g->kind = copy_of(kind, total, sizeof(i32)), g->soft = copy_of(soft, total, sizeof(i32));
    g->instance = copy_of(instance, total, sizeof(i32));
    g->need_start = copy_of(need_start, total + 1, sizeof(i32));
    g->need = copy_of(need, need_start[total], sizeof(i32));
    g->back = copy_of(back, need_start[total], sizeof(i32));
    g->flow = copy_of(flow, instances, sizeof(i32));
    i32 *key = allocate(total, sizeof(i32));
    for (i32 r = 0; r < g->roles; r++) {
        if (start[r + 1] - start[r] > g->widest) g->widest = start[r + 1] - start[r];
        for (i32 o = start[r]; o < start[r + 1]; o++) key[o] = r * g->streams + stream[o];
    }
    Lists lanes = lists_of(g->roles * g->streams, total, key);
    g->lane_start = lanes.start, g->lane = lanes.entry, g->plain = allocate(total, sizeof(i32));
    for (i32 place = total; place-- > 0;) {
        i32 o = g->lane[place];
        if (kind[o] != COMPUTE || need_start[o] < need_start[o + 1]) continue;
        int is_last = place + 1 == total || key[g->lane[place + 1]] != key[o];
        g->plain[place] = is_last ? 1 : g->plain[place + 1] + 1;
    }
    free(key);
    char *needed = allocate(total, 1);
    g->unseen = allocate(g->roles, sizeof(i32));
    for (i32 r = 0; r < g->roles; r++) {
        i32 first = g->lane_start[r * g->streams], last = g->lane_start[r * g->streams + 1];
        for (i32 k = need_start[start[r]]; k < need_start[start[r + 1]]; k++) needed[start[r] + need[k]] = 1;
        i32 most = first < last ? g->plain[first] : 0;
        while (g->unseen[r] < most && !needed[g->lane[first + g->unseen[r]]]) g->unseen[r]++;
    }
    free(needed);
    for (i32 o = 0; o < total; o++) if (stream[o] >= g->used) g->used = stream[o] + 1;
    w->graphs = resize(w->graphs, w->graph_count + 1, sizeof(Graph *));
    w->graphs[w->graph_count] = g;
    return w->graph_count++;
}

static void wake(World *w, i32 rank) {
    if (w->rank[rank].queued) return;
    w->rank[rank].queued = 1;
    w->queue[w->queue_count++] = rank;
}

void world_job(World *w, i64 job, i64 lag, double slowdown, const double *begin) {
    Job *j = &w->job[job];
    j->lag = (i32)lag, j->slowdown = slowdown;
    for (i32 r = 0; r < j->ranks; r++) {
        wake(w, j->first + r);
        for (i32 s = 0; s < w->streams; s++) lane_of(w, j->first + r, s)->until = begin[r];
    }
}

/* Durations that ranks of a job waited for are there. */
void world_reveal(World *w, i64 job) {
    Job *j = &w->job[job];
    j->soonest = INFINITY;
    for (i32 r = 0; r < j->ranks; r++) wake(w, j->first + r);
}

/* `rows`: three matrices (widest role, stride), see `Step`, valid until the step is freed; `scale`:
   of each instance. */
void world_feed(World *w, i64 job, i64 graph, double *rows, i64 stride, const double *scale) {
    Job *j = &w->job[job];
    Step *s = allocate(1, sizeof(Step));
    Graph *g = s->graph = w->graphs[graph];
    s->stride = stride, s->value = rows;
    s->enter = s->value + g->widest * stride, s->end = s->enter + g->widest * stride;
    s->instance = allocate(g->instances, sizeof(Instance *));
    s->scale = copy_of(scale, g->instances, sizeof(double));
    for (i32 r = 0; r < j->ranks; r++) s->open += g->start[g->role[r] + 1] - g->start[g->role[r]];
    j->steps = resize(j->steps, j->fed + 1, sizeof(Step *));
    j->steps[j->fed++] = s;
    if (g->used > j->streams) j->streams = g->used;
    world_reveal(w, job);
}

void world_final(World *w, i64 job) { w->job[job].final = 1, world_reveal(w, job); }

/* -- the network: max-min fair rates ------------------------------------------------------------ */

static double available(const World *w, i32 l) {
    const Link *link = &w->link[l];
    double capacity = link->capacity;
    if (w->present) {
        i32 present = 0;
        for (i32 j = 0; j < w->jobs; j++) present += w->present[(i64)l * w->jobs + j] > 0;
        if (present > 1) capacity *= pow(w->goodput, present - 1);
    }
    return link->steady > 0 ? larger(capacity - link->steady, LEAST_SHARE * capacity) : capacity;
}
/* The load of a link may have risen: see whether its capacity is kept, and its peak. */
static void rise(World *w, i32 l) {
    if (!w->link[l].risen) w->link[l].risen = 1, w->risen[w->risen_count++] = l;
}
static void mark_dirty(World *w, i32 l, int all) {
    Link *link = &w->link[l];
    if (!link->dirty) link->dirty = 1, w->dirty[w->dirty_count++] = l;
    link->all |= all;
    if (all) link->fair = available(w, l), rise(w, l);
}
/* Whether a link is a single message's, or bundle's. */
static int has_one(const Link *link) { return link->count + link->branches == 1; }
/* Let a message's rate be solved: give back to its links what it has there. */
static void include(World *w, i32 a) {
    Active *x = &w->active[a];
    if (x->seen == w->stamp) return;
    x->seen = w->stamp;
    i32 number = w->members++, seat = w->seat_count, hops = x->hops, own = -1;
    double rate = x->rate, weight = x->weight, limit = x->stage->own[x->message] * x->members;
    if (seat + hops > w->seat_room)
        w->seats = resize(w->seats, w->seat_room = 2 * w->seat_room + hops + 64, sizeof(Seat));
    for (i32 h = 0; h < hops; h++) {
        i32 l = x->link[h];
        Link *link = &w->link[l];
        if (link->mark != w->stamp) {
            link->mark = w->stamp, link->at = w->touched++;
            w->filling[link->at] = (Filling){
                .rest = link->fair - link->load, .least = INFINITY, .held = link->stopped,
                .link = l, .head = -1};
        }
        Filling *at = &w->filling[link->at];
        at->rest += rate, at->on++, at->unfrozen++, at->heavy += weight;
        at->held -= x->bottleneck == l;
        w->seats[seat + h] = (Seat){number, link->at, at->head}, at->head = seat + h;
        if (has_one(link) && at->rest < limit) limit = at->rest, own = l;
    }
    for (i32 k = seat; limit < INFINITY && k < seat + hops; k++) {
        Filling *at = &w->filling[w->seats[k].at];
        at->least = smaller(at->least, limit / weight);
    }
    w->seat_count = seat + hops;
    w->member[number] = (Member){-1, weight, larger(limit, 0), a, own, -1, seat, seat + hops};
}

static void freeze(World *w, Member *m, double rate, i32 stop) {
    m->rate = rate, m->stop = stop;
    for (i32 k = m->seat; k < m->last; k++) {
        Filling *at = &w->filling[w->seats[k].at];
        at->rest -= rate, at->unfrozen--, at->heavy -= m->weight;
    }
}

/* What a link leaves to each unit of weight not frozen. */
static double level_of(const Filling *at) {
    return at->unfrozen ? larger(at->rest, 0) / at->heavy : INFINITY;
}
/* The level at which a link stops its members, or no longer stops those that it held so far. */
static double turn_of(const World *w, const Filling *at) {
    double level = level_of(at), held = at->held ? w->link[at->link].level : INFINITY;
    return smaller(level, held);
}

/* Include messages on a link that it held, or those with more than `level`; whether there were any. */
static int widen(World *w, i32 t, double level) {
    i32 l = w->filling[t].link, known = w->members, seat = w->seat_count;
    const Link *link = &w->link[l];
    if (w->filling[t].on == link->count) return 0;
    for (i32 k = 0; k < link->count; k++) {
        const Active *x = &w->active[link->active[k]];
        if (x->seen == w->stamp || !x->weight) continue;
        if (level < 0 ? x->bottleneck == l : x->rate > level * (1 + EQUAL) * x->weight)
            include(w, link->active[k]);
    }
    for (; seat < w->seat_count; seat++) {
        const Filling *at = &w->filling[t = w->seats[seat].at];
        if (has_one(&w->link[at->link])) continue; /* a limit of its only message */
        double turn = turn_of(w, at);
        i32 place = w->levels.place[t];
        if (place < 0 || turn < w->levels.entry[place].key) heap_set(&w->levels, t, turn);
    }
    return w->members > known;
}

/* Freeze members at the level that link t leaves; those first that something of their own stops. */
static void stop_members(World *w, i32 t, double level) {
    Filling *at = &w->filling[t];
    int stopped = 0;
    for (i32 k = at->least < level ? at->head : -1; k >= 0; k = w->seats[k].next) {
        Member *m = &w->member[w->seats[k].member];
        if (m->rate >= 0 || m->limit >= level * m->weight) continue;
        freeze(w, m, m->limit, m->own);
        stopped = 1;
    }
    if (stopped) return;
    const Link *link = &w->link[at->link];
    if (!at->is_searched && (!link->stopped || level < link->level)) {
        at->is_searched = 1; /* what has more is to have less; nothing had more than what it held */
        if (widen(w, t, level)) return;
    }
    for (i32 k = at->head; k >= 0; k = w->seats[k].next) {
        Member *m = &w->member[w->seats[k].member];
        if (m->rate < 0) freeze(w, m, level * m->weight, at->link);
    }
    heap_drop(&w->levels, t), at->held = 0;
}

/* Progressive filling (Bertsekas & Gallager 1992, 6.5.2) of what other messages leave. Links have
   their turn by level, so that one that holds other messages, or finds some with more than it can
   leave, includes them before anything is decided above their level: nothing is solved twice. */
static void fill(World *w) {
    Heap *heap = &w->levels; /* empty */
    for (i32 t = 0; t < w->touched; t++)
        if (!has_one(&w->link[w->filling[t].link])) heap_set(heap, t, turn_of(w, &w->filling[t]));
    while (heap->count) {
        i32 t = heap->entry[0].item;
        Filling *at = &w->filling[t];
        double level = level_of(at), turn = turn_of(w, at);
        if (turn == INFINITY) {
            heap_drop(heap, t);
        } else if (turn > heap->entry[0].key) { /* what was frozen since has left more to each */
            heap_set(heap, t, turn);
        } else if (level > turn * (1 + EQUAL)) {
            if (at->unfrozen || at->rest > EQUAL * w->link[at->link].fair) widen(w, t, -1);
            at->held = 0;
        } else {
            stop_members(w, t, level);
        }
    }
    for (Member *m = w->member; m < w->member + w->members; m++)
        if (m->rate < 0) freeze(w, m, m->limit, m->own);
}

static void set_rate(World *w, i32 a, double rate) {
    Active *x = &w->active[a];
    int lasting = x->of->flow->lasting;
    x->left -= (lasting ? 1 : x->rate) * (w->now - x->since);
    x->since = w->now, x->rate = rate;
    if (x->bundle < 0) x->stage->peak[x->message] = larger(x->stage->peak[x->message], rate);
    heap_set(&w->endings, a, w->now + larger(x->left, 0) / (lasting ? 1 : rate));
}

/* -- bundles ------------------------------------------------------------------------------------

   Messages of one sender that leave together, alike but for where they end, are one event while only
   links that all of them take hold them up. The links that each takes without the others, its
   branches, see their load. Where that fills a link, or the link stops another message, those on it
   go on by themselves. */

/* The next message of a bundle that is not apart, from place k of its list on; -1: none. */
static i32 bundled_from(const Stage *s, const char *apart, i32 bundle, i32 *k) {
    for (; *k < s->bundle.start[bundle + 1]; ++*k) {
        i32 m = s->bundle.entry[*k];
        if (!apart || !apart[m]) return m;
    }
    return -1;
}
/* The first of a message's branches; they go on to the end of its route. */
static i64 branches_of(const Stage *s, i32 m) { return s->route[m] + s->trunk[s->bundle_of[m]]; }

static int is_hot(const World *w, const Stage *s, i32 m) {
    for (i64 h = branches_of(s, m); h < s->route[m + 1]; h++) if (w->link[s->link[h]].hot) return 1;
    return 0;
}

/* Rates of a bundle's messages change by so much. */
static void rates_change(World *w, const Active *x, double change) {
    Stage *s = x->stage;
    double rate = x->rate / x->members + change;
    i32 m;
    for (i32 k = s->bundle.start[x->bundle]; (m = bundled_from(s, x->of->apart[x->round], x->bundle, &k)) >= 0; k++) {
        s->peak[m] = larger(s->peak[m], rate);
        for (i64 h = branches_of(s, m); h < s->route[m + 1]; h++) {
            w->link[s->link[h]].load += change;
            if (change > 0) rise(w, s->link[h]);
        }
    }
}

static void settle(World *w) {
    for (i32 i = 0; i < w->members; i++) {
        const Member *m = &w->member[i];
        Active *x = &w->active[m->active];
        if (x->bottleneck >= 0) w->link[x->bottleneck].stopped--;
        x->bottleneck = m->stop;
        if (m->stop >= 0) w->link[m->stop].stopped++, w->link[m->stop].level = m->rate / m->weight;
        double change = m->rate - x->rate;
        if (w->endings.place[m->active] >= 0 && fabs(change) <= 1e-14 * x->rate) continue;
        for (i32 h = 0; h < x->hops; h++) w->link[x->link[h]].load += change;
        if (x->bundle >= 0) rates_change(w, x, change / x->members);
        set_rate(w, m->active, m->rate);
    }
    for (i32 t = 0; t < w->touched; t++) rise(w, w->filling[t].link);
}

/* Set the rate of a message that has all its links to itself; 0 where it has not. */
static int runs_alone(World *w, i32 a) {
    Active *x = &w->active[a];
    for (i32 h = 0; h < x->hops; h++)
        if (!has_one(&w->link[x->link[h]])) return 0;
    if (x->bundle >= 0) return 0;
    double rate = x->stage->narrow[x->message];
    for (i32 h = 0; h < x->hops; h++) {
        Link *link = &w->link[x->link[h]];
        link->load = rate, link->peak = larger(link->peak, link->load);
        if (x->bottleneck < 0 && link->capacity == rate)
            x->bottleneck = x->link[h], link->stopped = 1, link->level = rate / x->weight;
    }
    set_rate(w, a, rate);
    return 1;
}

static void retime_trains(World *w);
static int unbundle(World *w);

static void solve(World *w) {
    w->stamp++, w->seat_count = w->members = w->touched = 0;
    for (i32 i = 0; i < w->fresh_count; i++) {
        i32 a = w->fresh[i];
        if (!w->active[a].pair && !runs_alone(w, a)) include(w, a);
    }
    for (i32 d = 0; d < w->dirty_count; d++) {
        i32 l = w->dirty[d];
        Link *link = &w->link[l];
        for (i32 k = 0; k < link->count; k++) {
            Active *x = &w->active[link->active[k]];
            if (!x->weight) continue;
            if (link->all || x->bottleneck == l) include(w, link->active[k]);
        }
        link->dirty = link->all = 0;
    }
    w->fresh_count = w->dirty_count = 0;
    if (!w->members) return;
    fill(w), settle(w);
    w->rated += w->members;
}

static void share(World *w) {
    retime_trains(w);
    do solve(w);
    while (w->bundled_count && unbundle(w));
    for (; w->risen_count; w->risen_count--) {
        Link *link = &w->link[w->risen[w->risen_count - 1]];
        link->peak = larger(link->peak, link->load + link->steady), link->risen = 0;
    }
}

/* -- the network: messages ---------------------------------------------------------------------- */

static void make_room(World *w) {
    i32 old = w->active_room, room = w->active_room = old ? 2 * old : 256;
    w->active = resize(w->active, room, sizeof(Active));
    w->free_list = resize(w->free_list, room, sizeof(i32));
    heap_room(&w->endings, room, 0);
    w->member = resize(w->member, room, sizeof(Member));
    w->bundled = resize(w->bundled, room, sizeof(i32));
    w->fresh = resize(w->fresh, room, sizeof(i32));
    for (i32 a = room; a-- > old;) w->free_list[w->free_count++] = a;
}

static void point_dirty(World *w, Point *p);

/* Whether a message costs other jobs goodput: a lasting one does not. */
static int is_counted(const World *w, const Active *x) {
    return w->present && !x->of->flow->lasting;
}

/* Traffic comes to a link: trains there, and what shares links with trains, have to be asked again. */
static void disturb(World *w, const Link *link) {
    for (i32 i = 0; i < link->points; i++) point_dirty(w, link->point[i]);
    for (i32 i = 0; w->pairs && i < link->count; i++)
        for (Point *q = w->active[link->active[i]].pair; q; q = q->sharer) point_dirty(w, q);
}

static void enter_links(World *w, i32 a, int job) {
    Active *x = &w->active[a];
    double steady = x->of->flow->steady;
    w->followed++;
    for (i32 h = 0; h < x->hops; h++) {
        i32 l = x->link[h];
        Link *link = &w->link[l];
        if (link->count == link->room)
            link->active = resize(link->active, link->room = 2 * link->room + 4, sizeof(i32));
        disturb(w, link);
        link->active[link->count++] = a;
        if (is_counted(w, x) && w->present[(i64)l * w->jobs + job]++ == 0) mark_dirty(w, l, 1);
        if (steady > 0) link->steady += steady, mark_dirty(w, l, 1);
    }
}

static void leave_links(World *w, i32 a, int job) {
    Active *x = &w->active[a];
    double steady = x->of->flow->steady;
    for (i32 h = 0; h < x->hops; h++) {
        i32 l = x->link[h];
        Link *link = &w->link[l];
        i32 place = 0;
        while (link->active[place] != a) place++;
        link->active[place] = link->active[--link->count];
        double taken = steady > 0 ? steady : x->rate;
        if (steady > 0) link->steady = link->count ? link->steady - taken : 0, mark_dirty(w, l, 1);
        else link->load -= taken;
        if (x->bottleneck == l) link->stopped--;
        for (i32 i = 0; i < link->points; i++) point_dirty(w, link->point[i]);
        if (!link->count) {
            link->stopped = link->hot = 0;
            if (!link->branches) link->load = 0;
        } else if (link->stopped) mark_dirty(w, l, 0);
        if (is_counted(w, x) && --w->present[(i64)l * w->jobs + job] == 0) mark_dirty(w, l, 1);
    }
}

static void deliver_later(World *w, i32 delay, Instance *of, i32 round, i32 message) {
    Delay *d = &w->delays[delay];
    if (d->tail == d->room) {
        if (d->head > d->room / 2) {
            memmove(d->queue, d->queue + d->head, (size_t)(d->tail - d->head) * sizeof(Delivery));
            d->tail -= d->head, d->head = 0;
        } else
            d->queue = resize(d->queue, d->room *= 2, sizeof(Delivery));
    }
    d->queue[d->tail++] = (Delivery){w->now + d->latency, of, round, message}, w->delivering++;
}

/* Put a message on its links, or a bundle on those that its messages have in common; return its number
   among active messages. */
static i32 set_off(World *w, Point *point, Instance *of, i32 round, i32 message, double bytes, i32 bundle,
                   i32 members) {
    if (!w->free_count) make_room(w);
    i32 a = w->free_list[--w->free_count];
    Flow *f = of->flow;
    Stage *s = f->stages[f->stage_of[round]];
    i64 first = s->route[message];
    w->active[a] = (Active){
        .point = point, .of = of, .stage = s, .link = s->link + first,
        .hops = bundle < 0 ? (i32)(s->route[message + 1] - first) : s->trunk[bundle],
        .message = message, .round = round, .bundle = bundle, .members = members,
        .bottleneck = -1, .weight = f->steady > 0 ? 0 : f->weight * members,
        .left = bytes, .since = w->now,
    };
    enter_links(w, a, of->job);
    return a;
}

static void count_bytes(World *w, const Instance *of, double bytes) { w->sent += of->job ? 0 : bytes; }

static void send(World *w, Instance *of, i32 round, i32 message) {
    Flow *f = of->flow;
    Stage *s = f->stages[f->stage_of[round]];
    double bytes = s->bytes[message] * of->scale;
    if (bytes <= 0 || s->narrow[message] == INFINITY) { /* without links */
        count_bytes(w, of, bytes);
        deliver_later(w, s->delay[message], of, round, message);
        return;
    }
    if (s->whole[message] >= 0 && of->scale == 1) {
        count_bytes(w, of, bytes);
        w->followed++, s->peak[message] = s->narrow[message];
        deliver_later(w, s->whole[message], of, round, message);
        return;
    }
    i32 a = set_off(w, NULL, of, round, message, bytes, -1, 1);
    if (f->steady > 0) {
        for (i64 h = s->route[message]; h < s->route[message + 1]; h++) {
            Link *link = &w->link[s->link[h]];
            link->peak = larger(link->peak, link->steady); /* with others: once they gave way */
        }
        set_rate(w, a, f->steady);
    } else if (w->active[a].hops)
        w->fresh[w->fresh_count++] = a;
    else
        set_rate(w, a, s->narrow[message]);
}

/* Send the message of a point by itself; `part` of it was sent in a train. */
static void send_single(World *w, Point *p, double part) {
    double left = p->of->flow->stages[0]->bytes[p->message] * p->of->scale * (1 - part);
    i32 a = set_off(w, p, p->of, p->round, p->message, left, -1, 1); /* may move `fresh` */
    w->fresh[w->fresh_count++] = a;
}

/* Messages of an active bundle come to the links that they take without the others, or leave them. */
static void branch(World *w, const Active *x, i32 m, i32 count) {
    Stage *s = x->stage;
    double rate = x->rate / x->members;
    for (i64 h = branches_of(s, m); h < s->route[m + 1]; h++) {
        Link *link = &w->link[s->link[h]];
        disturb(w, link);
        link->branches += count, link->load += count * rate;
        if (!link->count && !link->branches) link->load = 0;
    }
}
static void branch_all(World *w, const Active *x, i32 count) {
    i32 m;
    for (i32 k = x->stage->bundle.start[x->bundle];
         (m = bundled_from(x->stage, x->of->apart[x->round], x->bundle, &k)) >= 0; k++)
        branch(w, x, m, count);
}

/* Let a message go apart from its bundle in this round. */
static void put_apart(Instance *of, const Stage *s, i32 round, i32 m) {
    if (!of->apart[round]) of->apart[round] = allocate(s->count, 1);
    of->apart[round][m] = 1;
}

/* Send a bundle; of its messages those over hot links by themselves. */
static void send_bundle(World *w, Instance *of, i32 round, i32 bundle) {
    const Stage *s = of->flow->stages[of->flow->stage_of[round]];
    i32 from = s->bundle.start[bundle], to = s->bundle.start[bundle + 1], members = 0;
    for (i32 k = from; k < to; k++) members += !is_hot(w, s, s->bundle.entry[k]);
    for (i32 k = from; k < to; k++) {
        i32 m = s->bundle.entry[k];
        if (members > 1 && !is_hot(w, s, m)) continue;
        put_apart(of, s, round, m), send(w, of, round, m);
    }
    if (members < 2) return;
    i32 k = from, m = bundled_from(s, of->apart[round], bundle, &k);
    i32 a = set_off(w, NULL, of, round, m, s->bytes[m] * of->scale * members, bundle, members);
    w->active[a].listed = w->bundled_count, w->bundled[w->bundled_count++] = a;
    w->fresh[w->fresh_count++] = a;
    branch_all(w, &w->active[a], 1);
}

static void bundle_over(World *w, i32 a) {
    i32 last = w->bundled[--w->bundled_count];
    w->bundled[w->active[last].listed = w->active[a].listed] = last;
}

/* Take the messages over hot links out of an active bundle; all where fewer than two would be left. */
static void take_apart(World *w, i32 a) {
    Active *x = &w->active[a];
    Instance *of = x->of;
    const Stage *s = x->stage;
    i32 bundle = x->bundle, round = x->round, job = of->job, hot = 0, m;
    for (i32 k = s->bundle.start[bundle]; (m = bundled_from(s, of->apart[round], bundle, &k)) >= 0; k++)
        hot += is_hot(w, s, m);
    if (!hot) return;
    int all = x->members - hot < 2;
    x->left -= x->rate * (w->now - x->since), x->since = w->now;
    double each = x->left / x->members, rate = x->rate / x->members;
    if (x->bottleneck >= 0) mark_dirty(w, x->bottleneck, 0);
    for (i32 k = s->bundle.start[bundle]; (m = bundled_from(s, of->apart[round], bundle, &k)) >= 0; k++) {
        if (!all && !is_hot(w, s, m)) continue;
        x = &w->active[a];
        branch(w, x, m, -1);
        put_apart(of, s, round, m);
        for (i32 h = 0; h < x->hops; h++) w->link[x->link[h]].load -= rate;
        x->left -= each, x->rate -= rate, x->weight--, x->members--;
        i32 single = set_off(w, NULL, of, round, m, each, -1, 1);
        w->fresh[w->fresh_count++] = single;
    }
    x = &w->active[a];
    if (!all) {
        w->fresh[w->fresh_count++] = a;
        return;
    }
    x->rate = 0;
    bundle_over(w, a), heap_drop(&w->endings, a), leave_links(w, a, job);
    w->free_list[w->free_count++] = a;
}

/* Take bundles apart on links that they fill, or that stop other messages; whether there are any. */
static int unbundle(World *w) {
    int found = 0;
    for (i32 i = 0; i < w->risen_count; i++) {
        Link *link = &w->link[w->risen[i]];
        if (link->branches && link->load > link->fair * (1 + EQUAL)) link->hot = found = 1;
    }
    for (i32 i = 0; i < w->members; i++) {
        i32 stop = w->member[i].stop;
        if (stop >= 0 && w->link[stop].branches) w->link[stop].hot = found = 1;
    }
    for (i32 k = found ? w->bundled_count : 0; k-- > 0;) take_apart(w, w->bundled[k]);
    return found;
}

static void point_sent(World *w, Point *p);

static void sent(World *w, i32 a) {
    Active *x = &w->active[a];
    Point *point = x->point;
    if (x->pair) w->pairs--;
    for (Point *q = x->pair, *next; q; q = next) next = q->sharer, q->partner = -1, q->sharer = NULL;
    heap_drop(&w->endings, a);
    leave_links(w, a, x->of->job);
    if (!point) count_bytes(w, x->of, x->stage->bytes[x->message] * x->of->scale * x->members);
    i32 message = x->bundle < 0 ? x->message : x->stage->count + x->bundle;
    if (x->bundle >= 0) branch_all(w, x, -1), bundle_over(w, a);
    w->free_list[w->free_count++] = a;
    if (point) point_sent(w, point);
    else deliver_later(w, x->stage->delay[x->message], x->of, x->round, message);
}

/* -- the network: ranks of a collective --------------------------------------------------------- */

static void points_over(World *w, Instance *of);
static void points_free(Instance *of);

/* Free an instance; keep the memory of a closed or spliced one for the next of its flow. */
static void instance_free(World *w, Instance *of) {
    Flow *f = of->flow;
    if (of->hops) points_over(w, of);
    if (w && (f->closed || of->points)) {
        f->spare = resize(f->spare, f->spares + 1, sizeof(Instance *));
        f->spare[f->spares++] = of;
        return;
    }
    if (of->points) points_free(of);
    if (of->need) for (i32 k = 0; k < f->rounds; k++) free(of->need[k]), free(of->apart[k]);
    free(of->entry), free(of->operation), free(of->count), free(of->at);
    free(of->need), free(of->apart), free(of->left), free(of);
}

static i32 *needs(Instance *of, i32 round) {
    Flow *f = of->flow;
    if (!of->need[round])
        of->need[round] = copy_of(f->stages[f->stage_of[round]]->need, f->participants, sizeof(i32));
    return of->need[round];
}

/* A participant is through with a round. */
static void leave_round(Instance *of, i32 round) {
    if (--of->left[round]) return;
    free(of->need[round]), free(of->apart[round]);
    of->need[round] = NULL, of->apart[round] = NULL;
}

static void ended(World *w, Instance *of, i32 rank, double end) {
    Job *j = &w->job[of->job];
    *cell(of->step, of->step->end, rank - j->first, of->operation[of->flow->of_rank[rank]]) = end;
}

static void finish_rank(World *w, Instance *of, i32 rank, double end) {
    ended(w, of, rank, end);
    of->step->open--;
    if (--of->open == 0 && of->is_urgent) happen_at(w, w->now, (Event){.rank = -1 - of->job});
    wake(w, rank);
}

/* Whether a collective begins on all ranks of a group at once: when all but the spared ones, which
   are none of one that is joined, have entered. */
static int begins_at_once(const Flow *f) { return f->joined || f->spared; }

static void begin_round(World *w, Instance *of, i32 p, i32 round);

static void finish_round(World *w, Instance *of, i32 p) {
    Flow *f = of->flow;
    i32 round = of->at[p];
    if (round >= 0) leave_round(of, round);
    if (round + 1 < f->rounds) {
        begin_round(w, of, p, round + 1);
        return;
    }
    of->at[p] = f->rounds;
    if (begins_at_once(f) && isnan(of->entry[p])) of->entry[p] = w->now; /* told once it enters */
    else finish_rank(w, of, f->rank[p], w->now);
}

static void begin_round(World *w, Instance *of, i32 p, i32 round) {
    Flow *f = of->flow;
    for (;; round++) {
        Stage *s = f->stages[f->stage_of[round]];
        of->at[p] = round;
        for (i32 k = s->by_gate.start[p]; k < s->by_gate.start[p + 1]; k++) {
            i32 m = s->by_gate.entry[k], bundle = s->bundle_of ? s->bundle_of[m] : -1;
            if (bundle >= 0) {
                if (m == s->bundle.entry[s->bundle.start[bundle]]) send_bundle(w, of, round, bundle);
            } else if (!s->posted || s->other[m] < 0 || of->at[s->other[m]] == round)
                send(w, of, round, m);
        }
        if (s->posted)
            for (i32 k = s->by_other.start[p]; k < s->by_other.start[p + 1]; k++) {
                i32 m = s->by_other.entry[k];
                if (s->gate[m] != p && of->at[s->gate[m]] == round) send(w, of, round, m);
            }
        if (needs(of, round)[p]) return;
        if (round + 1 == f->rounds) break;
        leave_round(of, round);
    }
    finish_round(w, of, p);
}

/* Let a participant whose last message of a round was delivered go on. */
static void go_on(World *w, Instance *of, i32 round, i32 p) {
    if (of->at[p] == round && of->need[round] && !of->need[round][p]) finish_round(w, of, p);
}

static void deliver_bundle(World *w, Instance *of, const Stage *s, i32 round, i32 bundle) {
    i32 *need = needs(of, round), m;
    i32 first = s->bundle.start[bundle], gate = s->gate[s->bundle.entry[first]];
    for (i32 k = first; (m = bundled_from(s, of->apart[round], bundle, &k)) >= 0; k++) {
        need[gate]--;
        if (s->other[m] >= 0) need[s->other[m]]--;
    }
    for (i32 k = first; (m = bundled_from(s, of->apart[round], bundle, &k)) >= 0; k++)
        if (s->other[m] >= 0 && s->other[m] != gate) go_on(w, of, round, s->other[m]);
    go_on(w, of, round, gate);
}

static void deliver(World *w, Delivery *d) {
    Instance *of = d->of;
    Stage *s = of->flow->stages[of->flow->stage_of[d->round]];
    if (d->message >= s->count) {
        deliver_bundle(w, of, s, d->round, d->message - s->count);
        return;
    }
    i32 ends[2] = {s->gate[d->message], s->other[d->message]};
    i32 *need = needs(of, d->round), done = 0;
    for (int e = 0; e < 2; e++)
        if (ends[e] >= 0 && --need[ends[e]] == 0 && of->at[ends[e]] == d->round) done |= 1 << e;
    if (done == 3 && ends[0] == ends[1]) done = 1;
    for (int e = 0; e < 2; e++)
        if (done & 1 << e) finish_round(w, of, ends[e]);
}

static void enter_together(World *w, Instance *of, i32 rank) {
    Flow *f = of->flow;
    i32 p = f->of_rank[rank], group = f->group[rank];
    i32 size = f->members.start[group + 1] - f->members.start[group];
    double end = of->entry[p];
    of->entry[p] = w->now;
    if (!isnan(end)) finish_rank(w, of, rank, end);
    if (++of->count[group] != (size > f->spared ? size - f->spared : 1)) return;
    for (i32 k = f->members.start[group]; k < f->members.start[group + 1]; k++)
        begin_round(w, of, f->members.entry[k], 0);
}

static void enter_urgent(World *w, Instance *of);

static void enter_network(World *w, Instance *of, i32 rank) {
    Flow *f = of->flow;
    if (of->waits) {
        enter_urgent(w, of);
        return;
    }
    if (begins_at_once(f) && f->rounds) {
        enter_together(w, of, rank);
        return;
    }
    if (f->rounds) begin_round(w, of, f->of_rank[rank], 0);
    else finish_rank(w, of, rank, w->now);
}

/* -- rings of which few messages share links ------------------------------------------------------

   A message that meets no other traffic takes the same time in every round, and so does a chain of
   such messages: a delivery of a shared message (a point) reaches the next point a constant time
   later, plus whole rounds spent at the slowest hop of the chain. So only points are followed.
   Between two events on its links a point sends a train: rounds that begin a period apart. A train
   ends where arrivals change their period, and is cut when traffic comes or goes on its links. Alone
   on them, or with one message that meets nothing else but such trains, a train needs no events;
   otherwise its messages are followed one by one. */

static void point_start(World *w, Point *p, double begin);
static void cut_train(World *w, Point *p);
static void publish_ends(World *w, Point *p);

static i32 message_at(const Point *p, i32 i) {
    i32 m = p->first + i;
    return m < p->row + p->ring ? m : m - p->ring;
}
static double entry_of(const Point *p, i32 m) {
    return p->of->entry[p->of->flow->stages[0]->gate[m]];
}

static void hops_free(Hops *h) {
    free(h->hop), free(h->rest), free(h->worst), free(h->lead), free(h->top), free(h->kind);
    free(h);
}

/* Chains between points; NULL where hops have too many lengths. */
static Hops *hops_of(const Stage *s, double scale) {
    Hops *h = allocate(1, sizeof(Hops));
    i32 n = s->count;
    h->hop = allocate(n, sizeof(double)), h->rest = allocate(n, sizeof(double));
    h->worst = allocate(n, sizeof(double)), h->lead = allocate(n, sizeof(double));
    h->top = allocate(n, sizeof(double)), h->kind = allocate(n, sizeof(i32));
    for (i32 m = 0; m < n; m++) {
        double hop = s->latency[m] + (s->hop[m] - s->latency[m]) * scale;
        if (scale == 1) hop = s->hop[m];
        i32 c = 0;
        while (c < h->kinds && fabs(hop - h->length[c]) > 1e-13 * hop) c++;
        if (c == KINDS) {
            hops_free(h);
            return NULL;
        }
        if (c == h->kinds) h->length[h->kinds++] = hop;
        h->hop[m] = h->length[c];
    }
    for (i32 row = 0; row < n; row += s->ring) {
        i32 start = 0;
        while (start < s->ring && !shares(s, row + start)) start++;
        if (start == s->ring) continue;
        double sum = 0, most = 0;
        for (i32 k = 1; k < s->ring; k++) {
            i32 m = row + (start + k) % s->ring;
            if (shares(s, m)) { sum = most = 0; continue; }
            h->lead[m] = sum, sum += h->hop[m];
            h->top[m] = most = larger(most, h->hop[m]);
        }
        sum = most = 0;
        for (i32 k = s->ring; k-- > 1;) {
            i32 m = row + (start + k) % s->ring, c = 0;
            if (shares(s, m)) { sum = most = 0; continue; }
            h->rest[m] = sum += h->hop[m];
            h->worst[m] = most = larger(most, h->hop[m]);
            while (h->length[c] != most) c++;
            h->kind[m] = c;
        }
    }
    return h;
}

/* Whether only the points of a flow are followed: rings of n - 1 rounds or more, one to a group. */
static int is_spliced(World *w, Flow *f) {
    if (f->spliced >= 0) return f->spliced;
    f->spliced = 0;
    if (f->closed || f->joined || f->steady > 0 || w->present || f->stage_count != 1) return 0;
    if (f->weight != 1 || f->lasting || f->spared) return 0;
    Stage *s = f->stages[0];
    if (!s->ring || f->rounds < s->ring - 1 || 4 * s->points > s->count) return 0;
    for (i32 g = 0; g < f->groups; g++)
        if (s->by_group.start[g + 1] - s->by_group.start[g] != 1) return 0;
    for (i32 m = 0; m < s->count; m++)
        if (shares(s, m) && s->bytes[m] <= 0) return 0;
    if (!(s->hops = hops_of(s, 1))) return 0;
    return f->spliced = 1;
}

/* -- what arrives at a point */

typedef struct {
    double time, slope;
    i32 count;
} Arrival;

static double piece_at(const Piece *q, i32 round) { return q->first + (round - q->round) * q->period; }

/* The latest of a piece's deliveries until `last`, less `worst` for each round. */
static double best_of(const Point *q, i32 piece, i32 last, double worst) {
    const Piece *now = &q->piece[piece];
    return larger(now->first - now->round * worst, piece_at(now, last) - last * worst);
}

static void overtake(Arrival *found, double time, double slope) {
    if (time > found->time || (time == found->time && slope > found->slope)) {
        Arrival other = *found;
        found->time = time, found->slope = slope;
        time = other.time, slope = other.slope;
    }
    if (slope > found->slope && time > -INFINITY) {
        double rounds = ceil((found->time - time) / (slope - found->slope));
        if (rounds < found->count) found->count = rounds < 1 ? 1 : (i32)rounds;
    }
}

/* Arrivals from entries since the point before; 0 where a needed entry is not known. */
static int entries_arrive(Point *p, i32 round, const Hops *h, Arrival *found) {
    for (; p->near >= 0; p->near--) {
        i32 m = message_at(p, p->near), moves = p->length - p->near - 1, c = h->kind[m];
        double entry = entry_of(p, m);
        if (isnan(entry)) {
            if (moves <= round) return 0;
            if (moves - round < found->count) found->count = moves - round;
            break;
        }
        double value = entry + h->rest[m] - moves * h->worst[m];
        if (value > p->best[c]) {
            if (moves > round) {
                if (moves - round < found->count) found->count = moves - round;
                break;
            }
            if (moves == round) p->took = p->near, p->took_best = p->best[c], p->took_kind = c;
            p->best[c] = value;
        }
    }
    for (i32 c = 0; c < h->kinds; c++)
        if (p->best[c] > -INFINITY)
            overtake(found, p->best[c] + round * h->length[c], h->length[c]);
    return 1;
}

/* Arrivals from what the point before has sent; 0 where that is not known. */
static int sent_arrives(Point *p, i32 round, const Hops *h, Arrival *found) {
    Point *q = p->before;
    i32 of = round - p->length;
    if (of < 0) {
        if (-of < found->count) found->count = -of;
        return 1;
    }
    if (of >= q->known) return 0;
    if (p->read >= q->pieces) p->read = q->pieces - 1;
    double worst = p->length ? h->worst[p->first] : 0, sum = p->length ? h->rest[p->first] : 0;
    while (p->read + 1 < q->pieces && q->piece[p->read + 1].round <= of) {
        i32 past = p->read++;
        p->folded = larger(p->folded, best_of(q, past, q->piece[p->read].round - 1, worst));
    }
    const Piece *now = &q->piece[p->read];
    i32 left = q->known - of;
    if (p->read + 1 < q->pieces && q->piece[p->read + 1].round - of < left)
        left = q->piece[p->read + 1].round - of;
    if (left < found->count) found->count = left;
    if (!p->length) {
        overtake(found, piece_at(now, of), now->period);
        return 1;
    }
    double ahead = sum + (round - p->length) * worst;
    double best = larger(p->folded, now->first - now->round * worst);
    overtake(found, best + ahead, worst);
    if (now->period > worst) overtake(found, piece_at(now, of) + sum, now->period);
    return 1;
}

/* Arrival of message `round` of the message before a point, and how many rounds it is linear for. */
static int arrival(Point *p, i32 round, Arrival *found) {
    const Hops *h = p->of->hops;
    *found = (Arrival){-INFINITY, 0, p->of->flow->rounds - round};
    if (found->count < 1) found->count = 1;
    return entries_arrive(p, round, h, found) && sent_arrives(p, round, h, found);
}

/* -- on the links */

static void publish_at(World *w, double time, Point *p) {
    happen_at(w, time, (Event){.point = p, .slot = &p->publish});
}

static void point_dirty(World *w, Point *p) {
    if (p->is_dirty || p->mode != TRAIN) return;
    if (w->point_dirty_count == w->point_dirty_room)
        w->point_dirty = resize(w->point_dirty, w->point_dirty_room = 2 * w->point_dirty_room + 64,
                              sizeof(Point *));
    p->is_dirty = 1, w->point_dirty[w->point_dirty_count++] = p;
}

static void on_links(World *w, Point *p) {
    Stage *s = p->of->flow->stages[0];
    for (i64 k = s->route[p->message]; k < s->route[p->message + 1]; k++) {
        Link *link = &w->link[s->link[k]];
        if (link->points == link->point_room)
            link->point = resize(link->point, link->point_room = 2 * link->point_room + 2, sizeof(Point *));
        for (i32 i = 0; i < link->points; i++) point_dirty(w, link->point[i]);
        link->point[link->points++] = p;
    }
}
static void off_links(World *w, Point *p) {
    Stage *s = p->of->flow->stages[0];
    for (i64 k = s->route[p->message]; k < s->route[p->message + 1]; k++) {
        Link *link = &w->link[s->link[k]];
        i32 i = 0;
        while (link->point[i] != p) i++;
        link->point[i] = link->point[--link->points];
        for (i = 0; i < link->points; i++) point_dirty(w, link->point[i]);
    }
}

/* The next time, from `now` on, with one of some trains on the wire; `over`: when it is not any more. */
static double next_on(const Point *p, double now, double *over) {
    double found = INFINITY;
    for (; p; p = p->sharer) {
        double round = now > p->begin ? floor((now - p->begin) / p->period) : 0;
        while (p->begin + round * p->period + p->on <= now) round++;
        double start = larger(p->begin + round * p->period, now);
        if (start < found) found = start, *over = p->begin + round * p->period + p->on;
    }
    return found;
}

/* How long messages of a train are on the wire between two times. */
static double time_on(const Point *p, double since, double now) {
    double start = larger(since - p->begin, 0), end = now - p->begin; /* into the train */
    if (end <= start) return 0;
    i32 one = (i32)floor(start / p->period), other = (i32)floor(end / p->period);
    double into = start - one * p->period, out = end - other * p->period;
    return other * p->on + smaller(out, p->on) - one * p->on - smaller(into, p->on);
}

/* Whether trains keep the same pace, and no two have a message on the wire at once. */
static int take_turns(const Point *p) {
    for (const Point *q = p->sharer; q; q = q->sharer) {
        const Point *first = q->begin < p->begin ? q : p, *second = first == q ? p : q;
        double after = fmod(second->begin - first->begin, first->period);
        if (fabs(q->period - p->period) > 1e-12 * p->period) return 0;
        if (after < first->on || after + second->on > first->period) return 0;
    }
    return !p->sharer || take_turns(p->sharer);
}

/* Account for what a message has sent so far beside its trains. */
static void settle_pairs(World *w, Active *x) {
    const Point *p = x->pair;
    double now = w->now, since = x->since, on = 0, over = 0;
    if (now <= since) return;
    if (take_turns(p))
        for (const Point *q = p; q; q = q->sharer) on += time_on(q, since, now);
    else
        for (double at = since, start; (start = next_on(p, at, &over)) < now; at = over)
            on += smaller(over, now) - start;
    x->left -= on * p->beside + (now - since - on) * p->apart, x->since = now;
}

/* The end of a message that is slower while a message of its train is on the wire. */
static double end_beside(const Active *x) {
    const Point *p = x->pair;
    double left = larger(x->left, 0), now = x->since, into = 0;
    if (now < p->begin) {
        double wait = p->begin - now;
        if (left <= wait * p->apart) return now + left / p->apart;
        left -= wait * p->apart, now = p->begin;
    } else {
        double rounds = floor((now - p->begin) / p->period);
        into = now - p->begin - rounds * p->period;
    }
    double each = p->on * p->beside + (p->period - p->on) * p->apart;
    /* through the rest of this period, whole ones, and into the last */
    double rest = into < p->on ? (p->on - into) * p->beside + (p->period - p->on) * p->apart
                               : (p->period - into) * p->apart;
    if (left > rest) {
        left -= rest, now += p->period - into, into = 0;
        double whole = floor(left / each);
        left -= whole * each, now += whole * p->period;
    }
    if (into >= p->on) return now + left / p->apart;
    double able = (p->on - into) * p->beside;
    return now + (left <= able ? left / p->beside : (p->on - into) + (left - able) / p->apart);
}

/* The same beside several trains, which leave it the same rate whether one is on the wire or more; of
   an end behind the next message of these only a time before it: then the message `is_early`. */
static double end_among(Active *x) {
    const Point *p = x->pair;
    double left = larger(x->left, 0), over = 0, start = next_on(p, x->since, &over);
    double able = (start - x->since) * p->apart;
    if (left <= able) return x->since + left / p->apart;
    left -= able, able = (over - start) * p->beside;
    if (left <= able) return start + left / p->beside;
    x->is_early = 1;
    return over + (left - able) / p->apart;
}

static void pairs_end(World *w, Active *x) {
    x->is_early = 0;
    double end = x->pair->sharer ? end_among(x) : end_beside(x);
    heap_set(&w->endings, (i32)(x - w->active), end);
}

/* Detach a train from its partner. */
static void release_partner(World *w, Point *p) {
    if (p->partner < 0) return;
    Active *x = &w->active[p->partner];
    settle_pairs(w, x);
    Point **q = &x->pair;
    while (*q != p) q = &(*q)->sharer;
    *q = p->sharer, p->sharer = NULL, p->partner = -1;
    if (x->pair) {
        pairs_end(w, x);
        return;
    }
    w->pairs--, x->is_early = 0;
    heap_set(&w->endings, (i32)(x - w->active), w->now + larger(x->left, 0) / x->rate);
}

/* Look again for an end that was too far ahead. */
static int is_not_sent(World *w, i32 a) {
    Active *x = &w->active[a];
    if (!x->is_early) return 0;
    settle_pairs(w, x), pairs_end(w, x);
    return 1;
}

/* Rates of a point and a message on shared links: half each, or what another link of one leaves. */
static void halves(const World *w, const Point *p, const Active *x, double *mine, double *theirs) {
    const Stage *s = p->of->flow->stages[0], *t = x->stage;
    double both = INFINITY, own = s->own[p->message], other = t->own[x->message];
    for (i64 k = s->route[p->message]; k < s->route[p->message + 1]; k++) {
        const Link *link = &w->link[s->link[k]];
        double *least = link->count ? &both : &own;
        *least = smaller(*least, link->capacity);
    }
    for (i64 k = t->route[x->message]; k < t->route[x->message + 1]; k++) {
        const Link *link = &w->link[t->link[k]];
        if (!link->points) other = smaller(other, link->capacity);
    }
    if (own < both / 2) *mine = own, *theirs = smaller(other, both - own);
    else if (other < both / 2) *theirs = other, *mine = smaller(own, both - other);
    else *mine = *theirs = both / 2;
}

/* Whether a message beside two trains leaves each half of a link, and has the other half of both. */
static int splits_evenly(const World *w, const Point *p, const Point *q, const Active *x) {
    double mine, theirs, other, rest;
    halves(w, p, x, &mine, &theirs), halves(w, q, x, &other, &rest);
    return mine == theirs && mine == other && mine == rest;
}

/* The one other message on a point's links, where the two meet no other traffic but trains that halve
   their links as this does; -1: no message, -2: more traffic. */
static i32 only_companion(const World *w, const Point *p) {
    const Stage *s = p->of->flow->stages[0];
    i32 found = -1;
    for (i64 k = s->route[p->message]; k < s->route[p->message + 1]; k++) {
        const Link *link = &w->link[s->link[k]];
        if (link->steady > 0 || link->branches) return -2;
        if (!link->count) continue;
        if (link->count > 1 || (found >= 0 && link->active[0] != found)) return -2;
        found = link->active[0];
    }
    if (found < 0) return -1;
    const Active *x = &w->active[found];
    if (x->weight != 1 || x->of->flow->lasting) return -2;
    for (i32 h = 0; h < x->hops; h++) {
        const Link *link = &w->link[x->link[h]];
        if (link->steady > 0 || !has_one(link)) return -2;
        for (i32 i = 0; i < link->points; i++)
            if (link->point[i] != p && !splits_evenly(w, p, link->point[i], x)) return -2;
    }
    return found;
}

/* Other trains on a train's links: 1 where this one gives way to one with shorter rounds, 2 where
   all others give way to it, 0 without any. */
static int rival_trains(const World *w, const Point *p) {
    const Stage *s = p->of->flow->stages[0];
    int found = 0;
    for (i64 k = s->route[p->message]; k < s->route[p->message + 1]; k++) {
        const Link *link = &w->link[s->link[k]];
        for (i32 i = 0; i < link->points; i++) {
            const Point *q = link->point[i];
            if (q == p) continue;
            if (q->alone < p->alone || (q->alone == p->alone && q->id < p->id)) return 1;
            found = 2;
        }
    }
    return found;
}

/* -- trains */

static void notify(World *w, Point *p, i32 round);

/* Set deliveries from `round` on. */
static void set_deliveries(World *w, Point *p, i32 round, double first, double period, i32 known) {
    i32 limit = p->of->flow->rounds;
    if (known > limit) known = limit;
    Piece *last = p->pieces ? &p->piece[p->pieces - 1] : NULL;
    int same = last && last->period == period && p->known >= round
               && fabs(piece_at(last, round) - first) <= SAME_NS * 1e-2;
    if (!same) {
        while (p->pieces && p->piece[p->pieces - 1].round >= round) p->pieces--;
        if (p->pieces == p->room) p->piece = resize(p->piece, p->room = 2 * p->room + 4, sizeof(Piece));
        p->piece[p->pieces++] = (Piece){round, first, period};
    }
    if (same && known == p->known) return;
    i32 from = same ? (known < p->known ? known : p->known) : round;
    p->known = known;
    notify(w, p->after, from);
}

/* Forget deliveries from `round` on. */
static void forget_after(World *w, Point *p, i32 round) {
    if (p->known <= round) return;
    p->known = round;
    notify(w, p->after, round);
}

/* Schedule the ends of the chain behind a point once its deliveries decide them. */
static void publish_when_due(World *w, Point *p) {
    Point *next = p->after;
    if (next->waits || !next->length || p->round <= p->of->flow->rounds - next->length) return;
    next->waits = 1;
    publish_at(w, w->now + p->of->hops->lead[message_at(next, next->length - 1)], next);
}

static void point_over(World *w, Point *p, double end) {
    p->mode = OVER;
    finish_rank(w, p->of, p->of->flow->rank[p->of->flow->stages[0]->gate[p->message]], end);
}

/* After the delivery of a round: start the next once the message it waits for has arrived. */
static void point_next(World *w, Point *p) {
    Arrival next;
    i32 rounds = p->of->flow->rounds;
    p->mode = STALLED;
    if (!arrival(p, p->round - 1, &next)) {
        forget_after(w, p, p->round);
        if (p->round == rounds) publish_ends(w, p->after);
        else publish_when_due(w, p);
        return;
    }
    double begin = larger(p->came, next.time);
    if (p->round < rounds) {
        point_start(w, p, begin);
        publish_when_due(w, p);
        return;
    }
    publish_ends(w, p->after);
    p->mode = AWAITING, p->begin = begin;
    if (begin > w->now + SAME_NS) due_at(w, begin, p);
    else point_over(w, p, begin);
}

/* Find period and number of rounds of a train. */
static void train_of(Point *p) {
    Arrival next;
    i32 rounds = p->of->flow->rounds, report = rounds - p->after->length + 1 - p->round;
    i32 read = p->read; /* looking ahead takes in what is not there yet */
    double folded = p->folded;
    p->took = -1;
    p->period = p->hop, p->count = 1;
    if (p->round + 1 < rounds && arrival(p, p->round, &next)) {
        double over = p->begin + p->hop;
        if (over >= next.time) {
            p->count = next.count + 1;
            if (next.slope > p->hop) {
                double most = floor((over - next.time) / (next.slope - p->hop)) + 2;
                if (most < p->count) p->count = (i32)most;
            }
        } else if (next.slope >= p->hop
                   && fabs(p->begin + next.slope - next.time) <= SAME_NS * 1e-2)
            p->period = next.slope, p->count = next.count + 1;
    }
    p->read = read, p->folded = folded;
    if (p->took >= 0) p->near = p->took, p->best[p->took_kind] = p->took_best;
    if (p->round + p->count > rounds) p->count = rounds - p->round;
    if (report > 0 && p->count > report) p->count = report;
}

static void point_due(World *w, Point *p) {
    due_at(w, p->begin + (p->count - 1) * p->period + p->hop, p);
}

/* Start or retime a train that is alone on its links or shares them with one message. */
static void train_goes(World *w, Point *p, double rate, i32 partner, double beside) {
    Stage *s = p->of->flow->stages[0];
    double bytes = s->bytes[p->message] * p->of->scale;
    double old = p->on, sent = 0;
    int midway = p->mode == TRAIN && p->begin < w->now; /* cut while on the wire */
    if (midway) sent = smaller((w->now - p->begin) / old, 1);
    p->rate = rate, p->on = bytes / rate, p->hop = p->on + s->latency[p->message];
    if (midway) p->begin = w->now - sent * p->on;
    p->mode = TRAIN, p->partner = partner;
    w->followed++;
    train_of(p);
    double peak = rate;
    if (partner >= 0) {
        Active *x = &w->active[partner];
        p->beside = beside, p->apart = x->stage->narrow[x->message];
        if (x->pair) settle_pairs(w, x);
        else x->left -= x->rate * (w->now - x->since), x->since = w->now, w->pairs++;
        p->sharer = x->pair, x->pair = p;
        for (i32 h = 0; h < x->hops; h++) {
            Link *link = &w->link[x->link[h]];
            link->load += p->apart - x->rate;
            if (x->bottleneck < 0 && link->capacity == p->apart)
                x->bottleneck = x->link[h], link->stopped = 1, link->level = p->apart;
        }
        x->rate = p->apart;
        x->stage->peak[x->message] = larger(x->stage->peak[x->message], x->rate);
        pairs_end(w, x);
        peak += beside;
    }
    for (i64 k = s->route[p->message]; k < s->route[p->message + 1]; k++) {
        Link *link = &w->link[s->link[k]];
        link->peak = larger(link->peak, link->count ? peak : rate);
    }
    s->peak[p->message] = larger(s->peak[p->message], rate);
    point_due(w, p);
    set_deliveries(w, p, p->round, p->begin + p->hop, p->period, p->of->flow->rounds);
}

/* Start a round at `begin`, which may be ahead of the clock. Of two trains on a link one has to give
   way: a point that would does not start a train. */
static void point_start(World *w, Point *p, double begin) {
    Stage *s = p->of->flow->stages[0];
    p->alone = s->bytes[p->message] * p->of->scale / s->narrow[p->message];
    p->begin = begin, p->mode = AWAITING;
    int meets = rival_trains(w, p);
    i32 other = meets == 1 ? -2 : only_companion(w, p);
    if (other == -2) {
        forget_after(w, p, p->round);
        due_at(w, begin, p);
        return;
    }
    on_links(w, p);
    double rate = s->narrow[p->message], beside = 0;
    if (meets) other = -1;
    if (other >= 0) halves(w, p, &w->active[other], &rate, &beside);
    train_goes(w, p, rate, other, beside);
    if (meets) point_dirty(w, p);
}

/* Advance a train to the present: drop the rounds whose successors have begun. */
static void train_now(World *w, Point *p) {
    if (p->begin >= w->now) return;
    i32 k = (i32)floor((w->now - p->begin) / p->period + 1e-9);
    if (k > p->count - 1) k = p->count - 1;
    if (k > 0) p->came = p->begin + (k - 1) * p->period + p->hop;
    p->round += k, p->begin += k * p->period, p->count -= k;
}

static int is_sent(const World *w, const Point *p) {
    return w->now >= p->begin + p->on * (1 - 1e-12) - SAME_NS * 1e-3;
}

/* End a train; a message on the wire goes on by itself. */
static void cut_train(World *w, Point *p) {
    release_partner(w, p);
    train_now(w, p);
    off_links(w, p);
    event_drop(w, p->due);
    if (is_sent(w, p)) {
        p->came = p->begin + p->hop;
        p->round++;
        point_next(w, p);
        return;
    }
    p->mode = AWAITING;
    forget_after(w, p, p->round);
    if (p->begin > w->now + SAME_NS) {
        due_at(w, p->begin, p);
        return;
    }
    p->mode = FLYING;
    send_single(w, p, smaller(larger((w->now - p->begin) / p->on, 0), 1));
}

/* Traffic came or went on the links of a train. */
static void retime_train(World *w, Point *p) {
    int meets = rival_trains(w, p);
    i32 other = meets == 1 ? -2 : only_companion(w, p);
    if (meets == 2 && other != -2) return; /* the others are cut, and this one is asked again */
    if (meets || other == -2) {
        cut_train(w, p);
        return;
    }
    if (other == -1 && p->partner < 0 && p->rate == p->of->flow->stages[0]->narrow[p->message])
        return;
    release_partner(w, p);
    train_now(w, p);
    if (is_sent(w, p)) {
        p->came = p->begin + p->hop;
        p->round++;
        event_drop(w, p->due);
        off_links(w, p);
        point_next(w, p);
        return;
    }
    double rate = p->of->flow->stages[0]->narrow[p->message], beside = 0;
    if (other >= 0) halves(w, p, &w->active[other], &rate, &beside);
    train_goes(w, p, rate, other, beside);
}

static void retime_trains(World *w) {
    while (w->point_dirty_count) {
        Point *p = w->point_dirty[--w->point_dirty_count];
        p->is_dirty = 0;
        if (p->mode == TRAIN) retime_train(w, p);
    }
}

/* Deliveries of the point before have changed from `round` on. */
static void notify(World *w, Point *p, i32 round) {
    if (p->mode == ABSENT || p->mode == OVER || p->mode == FLYING) return;
    i32 based = p->round - 1 - p->length; /* round of the one before that this one began with */
    if (p->mode == STALLED) {
        if (based < p->before->known) point_next(w, p);
        return;
    }
    if (p->round && based >= round && p->begin > w->now) {
        if (p->mode == TRAIN) release_partner(w, p), off_links(w, p);
        event_drop(w, p->due);
        point_next(w, p);
        return;
    }
    if (p->mode != TRAIN) return;
    i32 count = round + p->length + 1 - p->round;
    if (count >= p->count) return;
    p->count = count < 1 ? 1 : count;
    point_due(w, p);
}

/* The end of a train, or of a wait. */
static void point_event(World *w, Point *p) {
    if (p->mode == AWAITING) {
        if (p->round == p->of->flow->rounds) {
            point_over(w, p, p->begin);
            return;
        }
        point_start(w, p, p->begin);
        if (p->mode != AWAITING || p->due < 0) return;
        event_drop(w, p->due);
        p->mode = FLYING;
        send_single(w, p, 0);
        return;
    }
    release_partner(w, p);
    off_links(w, p);
    p->came = p->begin + (p->count - 1) * p->period + p->hop;
    p->round += p->count;
    point_next(w, p);
}

/* A message of a point, sent by itself, has left the wire. */
static void point_sent(World *w, Point *p) {
    Stage *s = p->of->flow->stages[0];
    p->came = w->now + s->latency[p->message];
    p->round++;
    set_deliveries(w, p, p->round - 1, p->came, 0, p->round);
    point_next(w, p);
}

/* -- entries and ends */

static void points_of(Instance *of) {
    Flow *f = of->flow;
    Stage *s = f->stages[0];
    of->point_of = allocate(s->count, sizeof(Point *));
    of->point_count = s->points;
    Point *all = of->points = allocate(s->points, sizeof(Point));
    i32 number = 0;
    for (i32 row = 0; row < s->count; row += s->ring) {
        i32 first = number;
        for (i32 m = row; m < row + s->ring; m++) {
            if (!shares(s, m)) continue;
            all[number++] = (Point){.message = m, .row = row, .ring = s->ring};
        }
        for (i32 k = first; k < number; k++) {
            Point *p = &all[k], *q = &all[k > first ? k - 1 : number - 1];
            p->before = q, q->after = p;
            p->first = q->message + 1 < row + s->ring ? q->message + 1 : row;
            p->length = (p->message - q->message - 1 + s->ring) % s->ring;
            if (p == q) p->length = s->ring - 1;
            p->early = allocate(p->length, sizeof(double));
            for (i32 i = 0; i < p->length; i++) of->point_of[message_at(p, i)] = p;
            of->point_of[p->message] = p;
        }
    }
}

/* All points as before any entry, in the memory that they have. */
static void points_begin(World *w, Instance *of) {
    for (Point *p = of->points; p < of->points + of->point_count; p++) {
        *p = (Point){.of = of, .before = p->before, .after = p->after, .id = w->point_number++,
                     .message = p->message, .first = p->first, .length = p->length, .row = p->row,
                     .ring = p->ring, .due = -1, .publish = -1, .partner = -1, .piece = p->piece,
                     .room = p->room, .folded = -INFINITY, .near = p->length - 1,
                     .missing = p->length, .left = p->length, .early = p->early, .top = -1};
        for (i32 c = 0; c < KINDS; c++) p->best[c] = -INFINITY;
    }
}

static void points_over(World *w, Instance *of) {
    for (Point *p = of->points; p < of->points + of->point_count; p++)
        event_drop(w, p->due), event_drop(w, p->publish);
    if (of->hops != of->flow->stages[0]->hops) hops_free(of->hops);
    of->hops = NULL;
}

static void points_free(Instance *of) {
    for (i32 k = 0; k < of->point_count; k++) free(of->points[k].piece), free(of->points[k].early);
    free(of->points), free(of->point_of);
}

/* Whether points of a participant's ring are followed: one without any is closed. */
static int has_points(const Instance *of, i32 participant) {
    if (!of->hops) return 0;
    const Lists *mine = &of->flow->stages[0]->by_gate;
    return of->point_of[mine->entry[mine->start[participant]]] != NULL;
}

/* A rank enters at `begin`, which may be ahead of the clock. */
static void enter_ring(World *w, Instance *of, i32 participant, double begin) {
    Stage *s = of->flow->stages[0];
    i32 m = s->by_gate.entry[s->by_gate.start[participant]];
    Point *p = of->point_of[m];
    of->entry[participant] = begin;
    if (m == p->message) {
        p->came = begin;
        point_start(w, p, begin);
        return;
    }
    p->missing--;
    if (p->mode == STALLED && p->near >= 0 && message_at(p, p->near) == m) point_next(w, p);
    if (!p->missing && p->waits) publish_ends(w, p);
}

/* Ends as far as entries of the segment decide them. */
static void early_ends(Point *p) {
    const Hops *h = p->of->hops;
    i32 rounds = p->of->flow->rounds;
    p->is_early = 1;
    for (i32 i = 0; i < p->length; i++) p->early[i] = -INFINITY;
    for (i32 c = 0; c < h->kinds; c++) {
        double best = -INFINITY, length = h->length[c], run = -INFINITY;
        for (i32 i = 0; i < p->length; i++) {
            i32 m = message_at(p, i);
            run = larger(run, entry_of(p, m) - h->lead[m] + i * length);
            if (fabs(h->hop[m] - length) <= 1e-13 * length) best = run;
            if (best > -INFINITY)
                p->early[i] = larger(p->early[i], best + h->lead[m] + (rounds - i) * length);
        }
    }
}

static i32 rounds_known(const World *w, const Point *q) {
    if (q->mode == OVER) return q->of->flow->rounds;
    if (q->mode != TRAIN) return q->round;
    double past = w->now - q->begin - q->hop;
    if (past < 0) return q->round;
    i32 k = (i32)floor(past / q->period) + 1;
    return q->round + (k < q->count ? k : q->count);
}

/* Ends of a run of ranks are published: what needs them goes on before time passes. */
static void resume_later(World *w, Point *p, i32 first, i32 count) {
    if (w->run_count == w->run_room)
        w->run = resize(w->run, w->run_room = 2 * w->run_room + 64, sizeof(Run));
    if (count) w->run[w->run_count++] = (Run){p, first, count};
    p->of->open -= count, p->of->step->open -= count;
}

/* Publish the ends of a point's segment, as far as deliveries decide them. */
static void publish_ends(World *w, Point *p) {
    Flow *f = p->of->flow;
    const Hops *h = p->of->hops;
    Point *q = p->before;
    i32 rounds = f->rounds, known = rounds_known(w, q);
    p->waits = 1;
    if (p->missing || !p->left) return;
    if (!p->is_early) early_ends(p);
    i32 most = p->left;
    for (; p->left && p->left - 1 >= rounds - known; p->left--) {
        i32 i = p->left - 1, m = message_at(p, i), last = rounds - 1 - i;
        if (h->top[m] != p->top) p->top = h->top[m], p->best_past = -INFINITY, p->past = 0;
        for (; p->past + 1 < q->pieces && q->piece[p->past + 1].round <= last; p->past++)
            p->best_past = larger(p->best_past, best_of(q, p->past, q->piece[p->past + 1].round - 1, p->top));
        double sent = larger(p->best_past, best_of(q, p->past, last, p->top));
        double end = larger(p->early[i], sent + h->lead[m] + last * p->top);
        ended(w, p->of, f->rank[f->stages[0]->gate[m]], end);
    }
    resume_later(w, p, p->left, most - p->left);
    if (p->left && known < rounds) {
        double lead = h->lead[message_at(p, p->left - 1)];
        if (lead > 0) publish_at(w, w->now + lead, p);
    }
}

/* -- collectives that share nothing ------------------------------------------------------------- */

/* Ends of chains that stay where a hop takes `length`. A chain that begins at s moves on to its end
   in n - 1 moves at most, or, where `whole` allows it, in n more. `key` is the value of a chain by
   its start; a start in the lap before adds `lap`. The chain has to pass a position of that length:
   before the first of a lap, that is the last of the lap before. */
static void staying_ends(World *w, const double *x, double *out, const double *hop, i32 n, i32 k,
                 double length, int whole) {
    const double *sum = w->sum;
    double *key = w->here + w->space - n, *behind = w->there, lap = sum[n] - n * length;
    double best = -INFINITY, past = -INFINITY, tail = -INFINITY; /* tail: starts behind the last */
    i32 first = n, last = -1;
    for (i32 i = n; i-- > 0;) {
        if (fabs(hop[i] - length) <= 1e-13 * length) {
            first = i;
            if (last < 0) last = i, tail = past;
        }
        key[i] = x[i] - sum[i] + i * length;
        behind[i] = past, past = larger(past, key[i]);
    }
    for (i32 i = last; first && i >= 0; i--) {
        if (i < first) behind[i] = best;
        best = larger(best, key[i]);
    }
    best = past = -INFINITY;
    for (i32 i = 0; i < n; i++) {
        past = larger(past, key[i]);
        if (fabs(hop[i] - length) <= 1e-13 * length) best = past;
        double before = behind[i];
        if (whole) before = larger(before, larger(past, tail + lap));
        double end = larger(best, before + lap) + sum[i] + (double)(k - i) * length;
        out[i] = larger(out[i], end);
    }
}

static void rounds_through(World *w, double *out, const double *hop, i32 n, i32 rounds) {
    double *sent = w->there;
    for (i32 round = 0; round < rounds; round++) {
        for (i32 i = 0; i < n; i++) sent[i] = out[i] + hop[i];
        for (i32 i = 1; i < n; i++) out[i] = larger(sent[i], sent[i - 1]);
        out[0] = larger(sent[0], sent[n - 1]);
    }
}

/* One row of a ring, k rounds: in each a chain stays at its position or moves on with a message. Of
   all chains between two positions the longest stays at one position only, where hops take longest,
   so that each distinct length of a hop has one best start. More than n - 1 moves pay only to reach
   the longest hop of all; they fit into 2n - 2 rounds. */
static void row_through(World *w, const double *x, double *out, const double *hop, i32 n, i32 k) {
    double lengths[32], longest = 0;
    i32 kinds = 0;
    for (i32 i = 0; i < n && kinds <= 32; i++) {
        i32 c = 0;
        while (c < kinds && fabs(hop[i] - lengths[c]) > 1e-13 * hop[i]) c++;
        if (c == kinds && kinds < 32) lengths[kinds] = hop[i], longest = larger(longest, hop[i]);
        if (c == kinds) kinds++;
    }
    if (kinds == 1 && k >= n - 1) {
        double latest = -INFINITY;
        for (i32 i = 0; i < n; i++) latest = larger(latest, x[i]);
        for (i32 i = 0; i < n; i++) out[i] = latest + k * lengths[0];
        return;
    }
    if (kinds > 32 || k < n - 1 || 6 * kinds > k) {
        memcpy(out, x, (size_t)n * sizeof(double));
        rounds_through(w, out, hop, n, k);
        return;
    }
    double *sum = w->sum; /* of the hops before each place */
    i32 whole = k >= 2 * n - 2, rounds = whole ? k : n - 1;
    sum[0] = 0;
    for (i32 i = 0; i < n; i++) sum[i + 1] = sum[i] + hop[i], out[i] = -INFINITY;
    for (i32 c = 0; c < kinds; c++)
        staying_ends(w, x, out, hop, n, rounds, lengths[c], whole && lengths[c] == longest);
    rounds_through(w, out, hop, n, k - rounds);
}

static void stage_through(World *w, Flow *f, Stage *s, i32 repeats, i32 group, double scale) {
    double *x = w->here;
    if (s->ring) {
        double *entry = w->sum + w->space - 3 * (i64)s->ring, *out = entry + s->ring,
               *hop = out + s->ring;
        for (i32 k = s->by_group.start[group]; k < s->by_group.start[group + 1]; k++) {
            i32 first = s->by_group.entry[k] * s->ring;
            for (i32 i = 0; i < s->ring; i++) {
                i32 m = first + i;
                entry[i] = x[s->gate[m]];
                hop[i] = scale == 1 ? s->hop[m] : s->latency[m] + (s->hop[m] - s->latency[m]) * scale;
            }
            row_through(w, entry, out, hop, s->ring, repeats);
            for (i32 i = 0; i < s->ring; i++) x[s->gate[first + i]] = out[i];
        }
        return;
    }
    double *next = w->there;
    for (i32 round = 0; round < repeats; round++) {
        double least = INFINITY, most = -INFINITY;
        for (i32 k = f->members.start[group]; k < f->members.start[group + 1]; k++)
            next[f->members.entry[k]] = s->need[f->members.entry[k]] ? -INFINITY : x[f->members.entry[k]];
        for (i32 k = s->by_group.start[group]; k < s->by_group.start[group + 1]; k++) {
            i32 m = s->by_group.entry[k], gate = s->gate[m], other = s->other[m];
            double hop = s->latency[m] + (s->hop[m] - s->latency[m]) * scale;
            double begin = s->posted && other >= 0 ? larger(x[gate], x[other]) : x[gate];
            next[gate] = larger(larger(next[gate], x[gate]), begin + hop);
            if (other >= 0) next[other] = larger(larger(next[other], x[other]), begin + hop);
        }
        for (i32 k = f->members.start[group]; k < f->members.start[group + 1]; k++) {
            i32 p = f->members.entry[k];
            least = smaller(least, next[p] - x[p]), most = larger(most, next[p] - x[p]);
            x[p] = next[p];
        }
        if (most - least > STEADY * most) continue;
        /* all ranks are later by the same: and so in every round from here */
        for (i32 k = f->members.start[group]; k < f->members.start[group + 1]; k++)
            x[f->members.entry[k]] += (repeats - 1 - round) * most;
        return;
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Entry of the last rank that is waited for: spared ranks count as entering with it. */
static double spared_entry(World *w, Instance *of, i32 group) {
    Flow *f = of->flow;
    i32 first = f->members.start[group], size = f->members.start[group + 1] - first;
    for (i32 k = 0; k < size; k++)
        w->there[k] = of->entry[f->members.entry[first + k]];
    qsort(w->there, (size_t)size, sizeof(double), ascending);
    i32 last = size - 1 - f->spared;
    return w->there[last > 0 ? last : 0];
}

static int enter_next(World *w, Instance *of, i32 count);

static void close_group(World *w, Instance *of, i32 group) {
    Flow *f = of->flow;
    double awaited = f->spared ? spared_entry(w, of, group) : INFINITY, latest = -INFINITY;
    for (i32 k = f->members.start[group]; k < f->members.start[group + 1]; k++)
        latest = larger(latest, of->entry[f->members.entry[k]]);
    latest = smaller(latest, awaited);
    for (i32 k = f->members.start[group]; k < f->members.start[group + 1]; k++) {
        i32 p = f->members.entry[k];
        w->here[p] = f->spared || f->joined ? latest : of->entry[p];
    }
    for (i32 n = 0; n < f->stage_count; n++)
        stage_through(w, f, f->stages[n], f->repeats[n], group, of->scale);
    i32 from = f->members.start[group], to = f->members.start[group + 1];
    for (i32 k = from; k < to; k++) {
        i32 p = f->members.entry[k];
        w->together[k - from] = f->rank[p];
        ended(w, of, f->rank[p], f->stage_count ? w->here[p] : latest); /* no messages: a barrier */
    }
    of->open -= to - from, of->step->open -= to - from;
    if (enter_next(w, of, to - from)) return;
    for (i32 k = 0; k < to - from; k++) wake(w, w->together[k]);
}

static void enter_at(World *w, Instance *of, i32 rank, double begin) {
    if (begin <= w->now + SAME_NS + SAME_SHARE * w->now) enter_network(w, of, rank);
    else happen_at(w, begin, (Event){.of = of, .rank = rank});
}

/* Urgent collectives go one at a time; of those ready on all ranks, the last first (Peng et al.
   2019). Begin the next, if none is under way. */
static void next_urgent(World *w, Job *j) {
    i32 last = 0;
    if (!j->ready_count || j->free == INFINITY) return;
    for (i32 k = 1; k < j->ready_count; k++) if (j->ready[k]->number > j->ready[last]->number) last = k;
    Instance *of = j->ready[last];
    Flow *f = of->flow;
    double begin = larger(w->now, j->free + f->launch), end = begin;
    j->ready[last] = j->ready[--j->ready_count];
    j->free = INFINITY, of->waits = 0, of->count[0] = 0;
    if (!f->closed) {
        for (i32 k = 0; k < f->members.start[f->groups]; k++) enter_at(w, of, f->rank[f->members.entry[k]], begin);
        return;
    }
    for (i32 p = 0; p < f->participants; p++) of->entry[p] = begin;
    for (i32 g = 0; g < f->groups; g++) {
        close_group(w, of, g);
        for (i32 k = f->members.start[g]; k < f->members.start[g + 1]; k++)
            end = larger(end, w->here[f->members.entry[k]]);
    }
    happen_at(w, end, (Event){.rank = -1 - of->job});
}
static void urgent_over(World *w, Job *j) { j->free = w->now, next_urgent(w, j); }

static void enter_urgent(World *w, Instance *of) {
    Job *j = &w->job[of->job];
    if (++of->count[0] < of->flow->members.start[of->flow->groups]) return;
    j->ready = resize(j->ready, j->ready_count + 1, sizeof(Instance *));
    j->ready[j->ready_count++] = of;
    next_urgent(w, j);
}

/* -- the data flow ------------------------------------------------------------------------------ */

static Instance *instance_of(World *w, i32 job, Step *step, i32 number, int is_urgent) {
    Instance *of = step->instance[number];
    if (of) return of;
    Flow *f = w->flows[step->graph->flow[number]];
    double scale = step->scale[number];
    Hops *hops = NULL;
    if (!is_urgent && is_spliced(w, f)) hops = scale == 1 ? f->stages[0]->hops : hops_of(f->stages[0], scale);
    int is_spare = f->spares && (f->closed || hops);
    of = step->instance[number] = is_spare ? f->spare[--f->spares] : allocate(1, sizeof(Instance));
    of->flow = f, of->step = step, of->job = job, of->scale = scale, of->hops = hops;
    of->open = f->members.start[f->groups];
    of->number = number, of->is_urgent = of->waits = is_urgent;
    if (is_spare) memset(of->count, 0, (size_t)f->groups * sizeof(i32));
    else {
        of->operation = allocate(f->participants, sizeof(i32));
        of->entry = allocate(f->participants, sizeof(double));
        of->count = allocate(f->groups, sizeof(i32));
    }
    if (f->closed) return of;
    if (hops) {
        for (i32 p = 0; p < f->participants; p++) of->entry[p] = NAN;
        if (!is_spare) points_of(of);
        points_begin(w, of);
        return of;
    }
    of->at = allocate(f->participants, sizeof(i32));
    of->need = allocate(f->rounds, sizeof(i32 *)), of->left = allocate(f->rounds, sizeof(i32));
    of->apart = allocate(f->rounds, sizeof(char *));
    for (i32 p = 0; p < f->participants; p++) of->at[p] = -1, of->entry[p] = NAN;
    for (i32 r = 0; r < f->rounds; r++) of->left[r] = f->participants;
    return of;
}

static void issue(World *w, i32 job, Step *step, i32 rank, i32 operation, i32 number, double begin,
                  int is_urgent) {
    Instance *of = instance_of(w, job, step, number, is_urgent);
    Flow *f = of->flow;
    i32 p = f->of_rank[rank];
    of->operation[p] = operation;
    if (has_points(of, p)) {
        enter_ring(w, of, p, begin);
        return;
    }
    if (is_urgent || (!f->closed && !of->hops)) {
        enter_at(w, of, rank, begin);
        return;
    }
    of->entry[p] = begin;
    i32 group = f->group[rank], from = f->members.start[group], to = f->members.start[group + 1];
    if (++of->count[group] < to - from) return;
    close_group(w, of, group);
}

/* End of a computation that a collective in flight slows; NAN while that is not known. */
static double slowed(World *w, Job *j, double begin, double length, double busy, i32 rank) {
    double whole = begin + length * (1 + j->slowdown);
    if (isnan(busy)) {
        if (w->now >= whole - SAME_NS) return whole;
        happen_at(w, whole, (Event){.rank = rank});
        return NAN;
    }
    double under = smaller(length * (1 + j->slowdown), larger(busy - begin, 0));
    return begin + under + length - under / (1 + j->slowdown);
}

/* Complete the operation of a stream. */
static void complete(Lane *lane, double end) {
    lane->until = end, lane->ready = -INFINITY;
    lane->at++, lane->needs_met = 0;
}

/* Whether all needs of an operation are over. The last is checked first: mostly it is the one to wait
   for. Needs found to be over are not checked again. */
static int is_ready(Job *j, const Graph *g, i32 o, i32 local, Lane *lane) {
    for (i32 k = g->need_start[o + 1] - lane->needs_met; k-- > g->need_start[o]; lane->needs_met++) {
        i32 of = lane->step - g->back[k];
        if (of < 0) continue;
        Step *past = j->steps[of];
        if (!past) continue; /* taken: over long ago */
        double end = *cell(past, past->end, local, g->need[k]);
        if (isnan(end)) {
            lane->awaited = cell(past, past->end, local, g->need[k]);
            return 0;
        }
        lane->ready = larger(lane->ready, end);
    }
    return 1;
}

/* The stream of a rank that waits for this collective; -1: none. */
static i32 stream_of(const World *w, const Instance *of, i32 rank) {
    const Step *step = of->step;
    i32 operation = of->operation[of->flow->of_rank[rank]];
    const double *end = cell(step, step->end, rank - w->job[of->job].first, operation);
    for (i32 s = 0; s < step->graph->used; s++) {
        const Lane *lane = lane_of(w, rank, s);
        if (lane->in_collective && lane->awaited == end) return s;
    }
    return -1;
}

/* `ready` of each rank: when all needs of an operation are over, -INFINITY without needs. Return 0
   where that is not known for all ranks. */
static int are_ready(const Job *j, const Graph *g, i32 o, i32 number, const i32 *rank, i32 count,
                     double *ready) {
    for (i32 i = 0; i < count; i++) ready[i] = -INFINITY;
    for (i32 k = g->need_start[o]; k < g->need_start[o + 1]; k++) {
        i32 of = number - g->back[k];
        const Step *past = of < 0 ? NULL : j->steps[of];
        if (!past) continue;
        const double *end = cell(past, past->end, 0, g->need[k]);
        for (i32 i = 0; i < count; i++) {
            if (isnan(end[rank[i] - j->first])) return 0;
            ready[i] = larger(ready[i], end[rank[i] - j->first]);
        }
    }
    return 1;
}

/* Wake those of ranks of which another stream than this one may go on. */
static void wake_others(World *w, const Job *j, const i32 *rank, i32 count, i32 stream) {
    for (i32 s = 0; s < j->streams; s++)
        for (i32 i = 0; i < count && s != stream; i++) {
            const Lane *lane = lane_of(w, rank[i], s);
            if (lane->awaited ? !isnan(*lane->awaited) : lane->step < j->fed) wake(w, rank[i]);
        }
}

/* Let the ranks `together`, whose ends of a collective are known, enter the next one of the stream at
   once, where it is the same for all, and closed or followed by its points, and none has to wait
   before it; 0 where that is not so. */
static int enter_next(World *w, Instance *of, i32 count) {
    const i32 *rank = w->together;
    const Job *j = &w->job[of->job];
    Step *step = of->step;
    const Graph *g = step->graph;
    i32 role = g->role[rank[0] - j->first], stream = stream_of(w, of, rank[0]);
    if (stream < 0) return 0;
    const Lane *first = lane_of(w, rank[0], stream);
    i32 row = role * g->streams + stream, place = g->lane_start[row] + first->at + 1;
    if (place == g->lane_start[row + 1]) return 0;
    i32 o = g->lane[place], operation = o - g->start[role], number = g->instance[o];
    if (g->kind[o] != COLLECTIVE) return 0;
    Flow *f = w->flows[g->flow[number]];
    i32 its = f->group[rank[0]];
    if (its < 0 || (!f->closed && !is_spliced(w, f))) return 0;
    for (i32 i = 0; i < count; i++)
        if (g->role[rank[i] - j->first] != role || f->group[rank[i]] != its) return 0;
    double *ready = w->there;
    if (!are_ready(j, g, o, first->step, rank, count, ready)) return 0;
    Instance *next = instance_of(w, of->job, step, number, 0);
    if (!f->closed && !next->hops) return 0;
    const double *value = cell(step, step->value, 0, operation);
    double *enter = cell(step, step->enter, 0, operation), *over = cell(step, step->end, 0, operation);
    for (i32 i = 0; i < count; i++) {
        i32 local = rank[i] - j->first, p = f->of_rank[rank[i]];
        Lane *lane = lane_of(w, rank[i], stream);
        complete(lane, *lane->awaited);
        lane->awaited = &over[local];
        enter[local] = ready[i] == -INFINITY ? lane->until : ready[i];
        double begin = larger(ready[i], lane->until) + value[local] + f->launch;
        next->operation[p] = operation;
        next->entry[p] = begin;
    }
    if (has_points(next, f->of_rank[rank[0]]))
        for (i32 i = 0; i < count; i++) {
            i32 p = f->of_rank[rank[i]];
            enter_ring(w, next, p, next->entry[p]);
        }
    else if ((next->count[its] += count) == f->members.start[its + 1] - f->members.start[its]) {
        close_group(w, next, its);
        return 1;
    }
    wake_others(w, j, rank, count, stream);
    return 1;
}

/* Carry out computations without needs, in sequence. */
static void compute(Step *step, i32 local, const i32 *operations, i32 first, i32 count, Lane *lane) {
    double now = lane->until;
    for (i32 k = 0; k < count; k++) {
        i64 at = (operations[k] - first) * step->stride + local;
        step->enter[at] = now;
        step->end[at] = now += step->value[at];
    }
    step->open -= count, lane->at += count, lane->until = now;
}

/* Carry out the next operation of a stream; 0 where it has to wait. */
static int operate(World *w, Job *j, Step *step, i32 rank, i32 o, Lane *lane) {
    Graph *g = step->graph;
    i32 local = rank - j->first, operation = o - g->start[g->role[local]];
    double *enter = cell(step, step->enter, local, operation);
    double *over = cell(step, step->end, local, operation);
    if (!is_ready(j, g, o, local, lane)) return 0;
    double ready = lane->ready, begin = larger(ready, lane->until), end = begin;
    double value = *cell(step, step->value, local, operation);
    switch (g->kind[o]) {
    case COMPUTE: end = begin + value; break;
    case DROP: end = larger(smaller(ready, begin), w->rank[rank].begun); break;
    case SLOWED: {
        double busy = *cell(step, step->end, local, g->soft[o]);
        end = slowed(w, j, begin, value, busy, rank);
        if (isnan(end)) return 0;
        break;
    }
    case COLLECTIVE:
    case URGENT: {
        int is_urgent = g->kind[o] == URGENT;
        *enter = ready == -INFINITY ? begin : ready;
        if (is_urgent) complete(lane, lane->until);
        else lane->awaited = over, lane->in_collective = 1;
        Flow *f = w->flows[g->flow[g->instance[o]]];
        if (f->group[rank] < 0) *over = begin, step->open--;
        else issue(w, w->rank[rank].job, step, rank, operation, g->instance[o],
                   begin + value + f->launch, is_urgent);
        return 1;
    }
    }
    *enter = begin, *over = end, step->open--;
    complete(lane, end);
    return 1;
}

/* Whether a rank is at the first operation of a step, whose duration is not known. */
static int is_unknown(const Job *j, i32 local, const Lane *lane) {
    const Step *step = j->steps[lane->step];
    if (lane->at || !step) return 0;
    i32 role = step->graph->role[local], place = step->graph->lane_start[role * step->graph->streams];
    if (place == step->graph->lane_start[role * step->graph->streams + 1]) return 0;
    return isnan(*cell(step, step->value, local, step->graph->lane[place] - step->graph->start[role]));
}

/* Until when a rank can do without a step, or its durations in it; INFINITY: it has both. Nobody
   learns before that when it began: a duration is not negative. */
static double can_wait(const World *w, const Job *j, i32 rank) {
    const Lane *lane = lane_of(w, rank, 0);
    i32 local = rank - j->first;
    if (lane->step >= j->fed) return j->final ? INFINITY : lane->until;
    if (lane->at || !is_unknown(j, local, lane)) return INFINITY;
    const Step *step = j->steps[lane->step];
    const Graph *g = step->graph;
    i32 role = g->role[local];
    const i32 *operation = &g->lane[g->lane_start[role * g->streams]];
    double until = lane->until;
    for (i32 k = 1; k <= g->unseen[role] && k < g->plain[g->lane_start[role * g->streams]]; k++)
        until += *cell(step, step->value, local, operation[k] - g->start[role]);
    return until;
}

/* Whether the end that a stream awaits is known; if so, resume it. */
static int resumes(Lane *lane) {
    if (isnan(*lane->awaited)) return 0;
    if (lane->in_collective) complete(lane, *lane->awaited);
    lane->awaited = NULL, lane->in_collective = 0;
    return 1;
}

/* Carry out a stream as far as possible; return whether it moved. */
static int proceed(World *w, Job *j, i32 rank, i32 stream) {
    Lane *lane = lane_of(w, rank, stream);
    i32 local = rank - j->first;
    int moved = 0;
    for (; lane->step < j->fed; moved = 1) {
        if (lane->awaited && !resumes(lane)) return moved;
        Step *step = j->steps[lane->step];
        if (!step) { /* over long ago: the stream had nothing to do in it */
            lane->step++;
            continue;
        }
        const Graph *g = step->graph;
        i32 role = g->role[local], row = role * g->streams + stream;
        i32 place = g->lane_start[row] + lane->at;
        if (place == g->lane_start[row + 1]) {
            lane->step++, lane->at = 0;
            continue;
        }
        if (stream == 0 && lane->at == 0) {
            if (is_unknown(j, local, lane)) return moved;
            w->rank[rank].begun = lane->until;
        }
        if (g->plain[place])
            compute(step, local, &g->lane[place], g->start[role], g->plain[place], lane);
        else if (!operate(w, j, step, rank, g->lane[place], lane))
            return moved;
    }
    return moved;
}

static void advance(World *w, i32 rank) {
    Job *j = &w->job[w->rank[rank].job];
    i32 idle = 0; /* streams that cannot go on since another one did */
    for (i32 s = j->streams; idle < j->streams;) {
        s = (s ? s : j->streams) - 1;
        idle = proceed(w, j, rank, s) ? 1 : idle + 1;
    }
    j->soonest = smaller(j->soonest, can_wait(w, j, rank));
}

static void resume_run(World *w, Run run) {
    Instance *of = run.point->of;
    const Stage *s = of->flow->stages[0];
    for (i32 i = 0; i < run.count; i++)
        w->together[i] = of->flow->rank[s->gate[message_at(run.point, run.first + i)]];
    if (enter_next(w, of, run.count)) return;
    for (i32 i = 0; i < run.count; i++) wake(w, w->together[i]);
}

static void flow_on(World *w) {
    while (w->run_count || w->queue_count) {
        if (w->run_count) {
            resume_run(w, w->run[--w->run_count]);
            continue;
        }
        i32 rank = w->queue[--w->queue_count];
        w->rank[rank].queued = 0;
        advance(w, rank);
    }
}

/* -- running ------------------------------------------------------------------------------------ */

static double upcoming(World *w) {
    double soonest = smaller(soonest_of(&w->endings), soonest_of(&w->events));
    for (i32 d = 0; w->delivering && d < w->delay_count; d++)
        if (w->delays[d].head < w->delays[d].tail)
            soonest = smaller(soonest, w->delays[d].queue[w->delays[d].head].time);
    return soonest;
}

static void pass(World *w, double now) {
    if (now > w->now) w->now = now;
    double until = w->now + SAME_NS + SAME_SHARE * w->now;
    int more_now = 1;
    while (more_now) {
        more_now = 0;
        while (soonest_of(&w->endings) <= until) {
            i32 a = w->endings.entry[0].item;
            if (!is_not_sent(w, a)) sent(w, a);
        }
        for (i32 d = 0; w->delivering && d < w->delay_count; d++)
            while (w->delays[d].head < w->delays[d].tail
                   && w->delays[d].queue[w->delays[d].head].time <= until) {
                Delivery item = w->delays[d].queue[w->delays[d].head++];
                w->delivering--;
                if (w->delays[d].head == w->delays[d].tail) w->delays[d].head = w->delays[d].tail = 0;
                deliver(w, &item);
                more_now = 1;
            }
        for (; soonest_of(&w->events) <= until; more_now = 1) {
            i32 n = w->events.entry[0].item;
            Event event = w->event[n];
            event_drop(w, n);
            if (!event.point && event.of) enter_network(w, event.of, event.rank);
            else if (!event.point && event.rank < 0) urgent_over(w, &w->job[-1 - event.rank]);
            else if (!event.point) wake(w, event.rank);
            else if (event.slot == &event.point->publish) publish_ends(w, event.point);
            else point_event(w, event.point);
        }
        flow_on(w);
    }
    share(w);
}

/* Whether all jobs that end have ended; neighbours do not. */
static int all_over(const World *w) {
    for (i32 n = 0; n < w->jobs; n++) {
        const Job *j = &w->job[n];
        for (i32 k = j->taken; j->final && k < j->fed; k++) if (j->steps[k]->open) return 0;
    }
    return w->job[0].final;
}

/* Run until a job needs its next step (return its number), nothing is left to do, or `most` messages
   are followed and rates solved. */
i64 world_run(World *w, i64 most) {
    i64 last = w->followed + w->rated + most;
    for (;;) {
        do {
            flow_on(w);
            if (w->fresh_count || w->dirty_count || w->point_dirty_count) share(w);
        } while (w->run_count || w->queue_count);
        double next = upcoming(w);
        i32 first = -1; /* who asked first */
        double soonest = next + SAME_NS + SAME_SHARE * w->now;
        for (i32 j = 0; j < w->jobs; j++) {
            Job *job = &w->job[j];
            if (job->soonest < INFINITY && job->soonest <= soonest && (first < 0 || job->soonest < soonest))
                first = j, soonest = job->soonest;
        }
        if (first >= 0) return first;
        if (next == INFINITY || all_over(w)) return STUCK;
        if (w->followed + w->rated >= last) return PAUSED;
        pass(w, next);
    }
}

i64 world_is_over(World *w, i64 job) {
    Job *j = &w->job[job];
    return j->taken < j->fed && !j->steps[j->taken]->open;
}

static void step_free(World *w, Step *s) {
    for (i32 k = 0; k < s->graph->instances; k++)
        if (s->instance[k]) instance_free(w, s->instance[k]);
    free(s->instance), free(s->scale), free(s);
}

/* Take the oldest step, which is over; free the step that no operation needs any more. */
void world_take(World *w, i64 job) {
    Job *j = &w->job[job];
    i32 old = j->taken++ - j->lag;
    if (old >= 0) step_free(w, j->steps[old]), j->steps[old] = NULL;
}

/* Messages of a step that are all sent one by one, and bundles: none of a closed or spliced collective.
   `only`: messages on links on which others may be, also those in bundles. */
i64 world_messages(World *w, i64 graph, i64 only) {
    const Graph *g = w->graphs[graph];
    i64 found = 0;
    for (i32 k = 0; k < g->instances; k++) {
        Flow *f = w->flows[g->flow[k]];
        if (f->closed || is_spliced(w, f)) continue;
        for (i32 n = 0; n < f->stage_count; n++)
            found += (i64)f->repeats[n]
                     * (only ? f->stages[n]->points : f->stages[n]->count - f->stages[n]->saved);
    }
    return found;
}
/* How much of a step of the first job is sent: a share of the bytes of messages sent one by one. */
double world_progress(World *w, i64 graph) {
    const Graph *g = w->graphs[graph];
    double all = 0, sent = w->sent;
    for (i32 k = 0; k < g->instances; k++) {
        Flow *f = w->flows[g->flow[k]];
        for (i32 n = 0; !f->closed && !is_spliced(w, f) && n < f->stage_count; n++)
            for (i32 m = 0; m < f->stages[n]->count; m++) all += f->repeats[n] * f->stages[n]->bytes[m];
    }
    for (i32 k = 0; k < w->endings.count; k++) {
        const Active *x = &w->active[w->endings.entry[k].item];
        double pace = x->of->flow->lasting ? 1 : x->rate;
        double left = larger(x->left - pace * (w->now - x->since), 0);
        if (!x->point && !x->of->job)
            sent += x->stage->bytes[x->message] * x->of->scale * x->members - left;
    }
    return all > 0 ? smaller(sent / all, 1) : 0;
}
i64 world_followed(World *w) { return w->followed; }
i64 world_rated(World *w) { return w->rated; }
void world_peaks(World *w, double *peak) {
    for (i32 l = 0; l < w->links; l++) peak[l] = w->link[l].peak;
    for (i32 k = 0; k < w->flow_count; k++)
        for (i32 n = 0; n < w->flows[k]->stage_count; n++) {
            const Stage *s = w->flows[k]->stages[n];
            for (i32 m = 0; m < s->count; m++)
                for (i32 h = s->alone.start[m]; h < s->alone.start[m + 1]; h++)
                    peak[s->alone.entry[h]] = larger(peak[s->alone.entry[h]], s->peak[m]);
        }
}

static void flow_free(Flow *f) {
    for (i32 k = 0; k < f->spares; k++) instance_free(NULL, f->spare[k]);
    free(f->spare);
    for (i32 n = 0; n < f->stage_count; n++) {
        Stage *s = f->stages[n];
        lists_free(&s->by_gate), lists_free(&s->by_other), lists_free(&s->by_group), lists_free(&s->alone);
        free(s->gate), free(s->other), free(s->bytes), free(s->latency), free(s->hop);
        if (s->hops) hops_free(s->hops);
        free(s->narrow), free(s->own), free(s->peak), free(s->route), free(s->link), free(s->delay);
        free(s->whole), free(s->bundle_of), free(s->trunk), lists_free(&s->bundle);
        free(s->need), free(s);
    }
    lists_free(&f->members);
    free(f->rank), free(f->of_rank), free(f->group), free(f->stages), free(f->repeats);
    free(f->stage_of), free(f);
}

void world_free(World *w) {
    for (i32 j = 0; j < w->jobs; j++) {
        for (i32 k = 0; k < w->job[j].fed; k++)
            if (w->job[j].steps[k]) step_free(w, w->job[j].steps[k]);
        free(w->job[j].steps), free(w->job[j].ready);
    }
    for (i32 k = 0; k < w->flow_count; k++) flow_free(w->flows[k]);
    for (i32 k = 0; k < w->graph_count; k++) {
        Graph *g = w->graphs[k];
        free(g->role), free(g->start), free(g->kind), free(g->instance), free(g->soft);
        free(g->lane_start), free(g->lane), free(g->plain), free(g->unseen), free(g->need_start), free(g->need), free(g->back);
        free(g->flow), free(g);
    }
    for (i32 l = 0; l < w->links; l++) free(w->link[l].active), free(w->link[l].point);
    for (i32 d = 0; d < w->delay_count; d++) free(w->delays[d].queue);
    void *rest[] = {w->job, w->link, w->present, w->flows, w->graphs, w->rank, w->lane, w->queue,
        w->active, w->free_list,
        w->event, w->event_free, w->delays, w->dirty, w->fresh, w->member, w->filling, w->seats,
        w->here, w->there, w->sum, w->point_dirty, w->run, w->together, w->bundled, w->risen};
    for (size_t k = 0; k < sizeof rest / sizeof *rest; k++) free(rest[k]);
    heap_free(&w->endings), heap_free(&w->events), heap_free(&w->levels);
    free(w);
}
