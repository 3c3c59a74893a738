/* Paged attention of one layer on float32.

   The work is cut into blocks of neighbouring places, and a block's keys into ranges if there are
   few blocks. A block has one row a place and query head of the KV head. A thread takes a block, a
   range of positions and a KV head, goes over the segments below it in tiles of keys, and keeps
   for each row the largest score, the sum of weights and the weighted sum of values, as in "Online
   normalizer calculation for softmax" (2018) and FlashAttention (2022). Keys and values are read
   where they lie, through a pointer a slot.

       many rows    scores [key][row]: queries turned over once a block, a row in each lane
       few rows     scores [row][key]: dot products along D, four keys at once

   Ranges of one block are joined in their order, so outputs do not depend on the threads. */

#include "parts.h"
#include "tiles.h"

typedef struct {
    const float *queries;
    float *out; /* [T, H, D] */
    long query_step, head_step; /* floats from a query or head to the next */
    const float *keys, *values;
} Layer;

/* What a thread works in; rows of `sums` and `queries` are `width` wide. */
typedef struct {
    long width, row_step;
    float *queries;         /* [rows][width], scaled */
    float *turned;          /* [D][row_step] */
    float *sums;            /* [rows][width] */
    float *top, *total, *fade;
    int32_t *low, *high;    /* of each row */
    float *scores, *copies;
    const float **keys, **values;
} Room;


INLINE long round_up(long value, long unit) { return (value + unit - 1) / unit * unit; }

static int find_room(Room *room, const Reading *reading) {
    long rows = reading->most_rows, size = reading->size;
    long width = num_vecs(size) * VW, row_step = round_up(rows + 2 * VW, 16);
    long most_scores = max_long(TILE * LANES, MOST_FEW * LONG_TILE);
    long num_floats = 2 * rows * width + size * row_step + 5 * row_step + most_scores;
    if (size < VW) num_floats += 2 * NUM_POINTERS * VW;
    long num_pointers = 2 * NUM_POINTERS;
    float *next = (float *)own_memory((size_t)(4 * num_floats) + (size_t)num_pointers * sizeof(void *));
    if (!next) return 0;
    room->width = width;
    room->row_step = row_step;
    room->keys = (const float **)next, next += num_pointers * (long)(sizeof(void *) / 4);
    room->values = room->keys + num_pointers / 2;
    room->scores = next, next += most_scores;
    room->queries = next, next += rows * width;
    room->sums = next, next += rows * width;
    room->turned = next, next += size * row_step;
    room->top = next, next += row_step;
    room->total = next, next += row_step;
    room->fade = next, next += row_step;
    room->low = (int32_t *)next, next += row_step;
    room->high = (int32_t *)next, next += row_step;
    room->copies = next;
    return 1;
}

/* Rows [row, row + num) on a tile of many rows. */
static void read_many(const Reading *reading, Room *room, long row, long num, long num_keys,
                      long position, int is_masked) {
    for (long r = row; r < row + num; r += LANES) {
        long here = min_long(row + num - r, LANES), vecs = (here + VW - 1) / VW;
        float kept_top[VW], kept_total[VW]; /* of the rows behind, whose lanes are used as well */
        float *behind_top = room->top + r + here, *behind_total = room->total + r + here;
        memcpy(kept_top, behind_top, sizeof kept_top);
        memcpy(kept_total, behind_total, sizeof kept_total);
        score_lanes((int)vecs, room->turned + r, room->row_step, reading->size, room->keys, num_keys,
                    room->scores);
#define WEIGH(vecs, is_masked)                                                                  \
    weigh_lanes(vecs, is_masked, room->scores, num_keys, position, reading->softcap,            \
                room->low + r, room->high + r, room->top + r, room->total + r, room->fade + r)
        if (vecs == VECS && !is_masked) WEIGH(VECS, 0);
        else if (vecs == VECS) WEIGH(VECS, 1);
        else if (vecs == 1) WEIGH(1, 1);
        else if (vecs == 2) WEIGH(2, 1);
        else WEIGH(VECS - 1, 1);
        memcpy(behind_top, kept_top, sizeof kept_top);
        memcpy(behind_total, kept_total, sizeof kept_total);
        add_values(here, reading->size, room->scores, 1, LANES, room->values, num_keys,
                   room->fade + r, room->sums + r * room->width, room->width);
    }
}

/* The same on a tile of few rows. */
static void read_few(const Reading *reading, Room *room, long row, long num, long num_keys,
                     long position) {
    score_few(num, room->queries + row * room->width, room->width, reading->size, room->keys,
              room->values, num_keys, room->scores);
    for (long r = row; r < row + num; r++)
        weigh_row(room->scores + (r - row) * LONG_TILE, num_keys, position, reading->softcap,
                  room->low[r], room->high[r], room->top + r, room->total + r, room->fade + r);
    add_values(num, reading->size, room->scores, LONG_TILE, 1, room->values, num_keys,
               room->fade + row, room->sums + row * room->width, room->width);
}

/* Point at the keys and values of a tile and a few behind it: those of the `num_slots` that follow,
   so that they can be fetched early, or the last one again. */
static void point(const Reading *reading, const Layer *layer, Room *room, long group,
                  const int64_t *slots, long num_keys, long num_slots) {
    const float *keys = layer->keys + group * reading->group_step;
    const float *values = layer->values + group * reading->group_step;
    for (long k = 0; k < num_keys + MORE_KEYS; k++) {
        long at = slots[min_long(k, num_slots - 1)] * reading->slot_step;
        room->keys[k] = keys + at;
        room->values[k] = values + at;
    }
    if (reading->size >= VW) return;
    for (long k = 0; k < num_keys + MORE_KEYS; k++) { /* heads narrower than a vector */
        float *key = room->copies + k * 2 * VW, *value = key + VW;
        store(key, load_some(room->keys[k], reading->size, 0));
        store(value, load_some(room->values[k], reading->size, 0));
        room->keys[k] = key;
        room->values[k] = value;
    }
}

/* Whether a segment has many rows of the block. */
static int has_many(const Reading *reading, long block) {
    long first_place = reading->block_place[block], end_place = reading->block_place[block + 1];
    for (long i = reading->block_entry[block]; i < reading->block_entry[block + 1]; i++) {
        long segment = reading->block_segment[i];
        long first = max_long(reading->first_place[segment], first_place);
        long end = min_long(reading->end_place[segment], end_place);
        if ((end - first) * reading->heads > MOST_FEW) return 1;
    }
    return 0;
}

/* Queries of a block's rows, scaled, and turned over if need be; rows behind the last are zero. */
static void take_queries(const Reading *reading, const Layer *layer, Room *room, long block,
                         long group) {
    long first = reading->block_place[block], num = reading->block_place[block + 1] - first;
    long heads = reading->heads, size = reading->size, rows = num * heads;
    float scale = 1 / sqrtf((float)size);
    int is_turned = has_many(reading, block);
    memset(room->queries, 0, 4 * (size_t)(rows * room->width));
    for (long r = 0; r < rows; r++) {
        long place = first + r / heads, head = group * heads + r % heads;
        const float *query =
            layer->queries + reading->order[place] * layer->query_step + head * layer->head_step;
        float *to = room->queries + r * room->width;
        long last = (num_vecs(size) - 1) * VW, at = vec_at(num_vecs(size) - 1, size);
        for (long d = 0; d < last; d++) to[d] = query[d] * scale;
        for (long d = last; d < size; d++) to[last + d - at] = query[d] * scale;
        for (long d = 0; is_turned && d < size; d++)
            room->turned[d * room->row_step + r] = query[d] * scale;
        room->low[r] = reading->low[place];
        room->high[r] = reading->high[place];
    }
    for (long d = 0; is_turned && d < size; d++)
        for (long r = rows; r < rows + VW; r++) room->turned[d * room->row_step + r] = 0;
    for (long r = 0; r < rows + VW; r++) {
        room->top[r] = UNSEEN;
        room->total[r] = 0;
        if (r >= rows) room->low[r] = room->high[r] = 0;
    }
    memset(room->sums, 0, 4 * (size_t)(rows * room->width));
}

/* Places [first, end) of the block, counted from its own first, read a tile of a segment. */
static void read_tile(const Reading *reading, Room *room, long first, long end, long num_keys,
                      long position) {
    long heads = reading->heads;
    const int32_t *low = room->low, *high = room->high;
    while (first < end && (high[first * heads] <= position ||
                           low[first * heads] >= position + num_keys)) first++;
    while (first < end && (high[(end - 1) * heads] <= position ||
                           low[(end - 1) * heads] >= position + num_keys)) end--;
    if (first == end) return;
    int is_masked = 0;
    for (long place = first; place < end; place++)
        is_masked |= low[place * heads] > position || high[place * heads] < position + num_keys;
    long row = first * heads, num = (end - first) * heads;
    if (num <= MOST_FEW) read_few(reading, room, row, num, num_keys, position);
    else read_many(reading, room, row, num, num_keys, position, is_masked);
}

/* All that a block reads of positions [low, high). */
static void read_block(const Reading *reading, const Layer *layer, Room *room, long block,
                       long group, long low, long high) {
    long first_place = reading->block_place[block], end_place = reading->block_place[block + 1];
    for (long i = reading->block_entry[block]; i < reading->block_entry[block + 1]; i++) {
        long segment = reading->block_segment[i], position = reading->first_position[segment];
        const int64_t *slots = reading->slots + reading->first_slot[segment] - position;
        long end = position + reading->first_slot[segment + 1] - reading->first_slot[segment];
        long first = max_long(reading->first_place[segment], first_place) - first_place;
        long last = min_long(reading->end_place[segment], end_place) - first_place;
        long tile = (last - first) * reading->heads <= MOST_FEW ? LONG_TILE : TILE;
        end = min_long(end, high);
        for (long at = max_long(position, low); at < end; at += tile) {
            long num_keys = min_long(end - at, tile);
            point(reading, layer, room, group, slots + at, num_keys, end - at);
            read_tile(reading, room, first, last, num_keys, at);
        }
    }
}

/* One row's output of D floats from `sums` as they lie in the room. */
INLINE void put_out(float *out, const float *sums, float factor, long size) {
    long vecs = num_vecs(size);
    if (size < VW) {
        store_some(out, load(sums) * factor, size);
        return;
    }
    for (long v = 0; v < vecs; v++) store(out + vec_at(v, size), load(sums + v * VW) * factor);
}

INLINE float *out_of(const Reading *reading, const Layer *layer, long block, long group, long row) {
    long place = reading->block_place[block] + row / reading->heads;
    long head = group * reading->heads + row % reading->heads;
    long num_heads = reading->num_groups * reading->heads;
    return layer->out + (reading->order[place] * num_heads + head) * reading->size;
}

INLINE long rows_of(const Reading *reading, long block) {
    return (reading->block_place[block + 1] - reading->block_place[block]) * reading->heads;
}

static void attend_item(const Reading *reading, const Layer *layer, Room *room, long item,
                        long group) {
    long block = reading->item_block[item], rows = rows_of(reading, block), width = room->width;
    take_queries(reading, layer, room, block, group);
    read_block(reading, layer, room, block, group, reading->item_low[item], reading->item_high[item]);
    if (reading->item_partial[item] < 0) {
        for (long r = 0; r < rows; r++)
            put_out(out_of(reading, layer, block, group, r), room->sums + r * width,
                    1 / room->total[r], reading->size);
        return;
    }
    float *to = reading->partial +
                (group * reading->num_partial_rows + reading->item_partial[item]) * (2 + width);
    for (long r = 0; r < rows; r++, to += 2 + width) {
        to[0] = room->top[r];
        to[1] = room->total[r];
        memcpy(to + 2, room->sums + r * width, 4 * (size_t)width);
    }
}

/* Join the partial outputs of a split block's items, in their order. */
static void join_items(const Reading *reading, const Layer *layer, Room *room, long split, long group) {
    long item = reading->split_item[split], num = reading->split_num[split];
    long block = reading->item_block[item], rows = rows_of(reading, block), width = room->width;
    const float *from =
        reading->partial +
        (group * reading->num_partial_rows + reading->item_partial[item]) * (2 + width);
    long step = rows * (2 + width);
    for (long r = 0; r < rows; r++, from += 2 + width) {
        float top = UNSEEN, total = 0, *sums = room->sums;
        for (long i = 0; i < num; i++) top = from[i * step] > top ? from[i * step] : top;
        memset(sums, 0, 4 * (size_t)width);
        for (long i = 0; i < num; i++) {
            const float *part = from + i * step;
            float weight = expf(part[0] - top);
            total += part[1] * weight;
            for (long d = 0; d < width; d += VW)
                store(sums + d, load(sums + d) + load(part + 2 + d) * weight);
        }
        put_out(out_of(reading, layer, block, group, r), sums, 1 / total, reading->size);
    }
}

void attend(const Member *me, const Reading *reading, const Asking *asking) {
    const Layer layer = {
        .queries = asking->queries,
        .out = asking->out,
        .query_step = asking->query_step,
        .head_step = asking->head_step,
        .keys = reading->keys + asking->number * reading->layer_step,
        .values = reading->values + asking->number * reading->layer_step,
    };
    long num_work = reading->num_items * reading->num_groups;
    long num_joins = reading->num_splits * reading->num_groups;
    Room room = {0};
    int is_ready = find_room(&room, reading);
    if (!is_ready) atomic_store(&me->team->failed, 1);
    for (long work; (work = next_in_order(me, num_work)) >= 0;) {
        long item = reading->num_items - 1 - work % reading->num_items; /* longest first */
        if (is_ready) attend_item(reading, &layer, &room, item, work / reading->num_items);
    }
    if (!num_joins) return;
    meet(me);
    for (long work; (work = next_in_order(me, num_joins)) >= 0;)
        if (is_ready)
            join_items(reading, &layer, &room, work / reading->num_groups,
                       work % reading->num_groups);
}

typedef struct {
    const Reading *reading;
    Asking asking;
    int has_failed;
} Call;

static void attend_work(const Member *me, void *what) {
    Call *call = what;
    attend(me, call->reading, &call->asking);
    meet(me);
    if (me->number == 0) call->has_failed = atomic_exchange(&me->team->failed, 0);
}

/* As `attend`; 0 if all went well, else there is no memory. */
EXPORT int mmserve_attend(const Reading *reading, long number, const float *queries,
                          long query_step, long head_step, float *out, int threads) {
    Call call = {reading, {number, queries, query_step, head_step, out}, 0};
    long num_work = reading->num_items * reading->num_groups;
    together((int)min_long(threads, num_work), attend_work, &call);
    return call.has_failed;
}
