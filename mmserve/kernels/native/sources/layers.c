/* All layers of a decoder over the tokens of a step, by the functions that compute them singly.

       hidden -> norm -> qkv -> (head norms) -> turned, stored -> attention -> out
              -> added, norm -> gate and up -> gate -> down -> added, norm of the next layer

   The last layer stores every token and goes on with those that are kept. What a row needs on its
   way lies in memory that the caller brings, so that no layer asks for any. */

#include "parts.h"

/* `_Layer` of native/layers.py; a gain that is NULL stands for no norm. */
typedef struct {
    const struct product *qkv, *out, *gate_up, *down;
    const float *before_attention, *query_norm, *key_norm, *after_attention;
    const float *before_mlp, *after_mlp;
    int64_t rope; /* which angles, -1: none */
} Layer;

/* `_Decoder` of native/layers.py. */
typedef struct {
    const Layer *layers;
    const float *final_norm;
    int64_t num_layers, num_heads, num_groups, size; /* size: of a head */
    int64_t width, num_gates; /* of hidden rows and of gates */
    float eps, query_scale;
    int32_t is_gelu;
} Decoder;

/* `_Step` of native/layers.py. */
typedef struct {
    float *hidden; /* [T, width], overwritten */
    float *out;    /* [Q, width] */
    float *room;   /* floats_of_room of them */
    const Target *target;
    float *keys, *values; /* of layer 0 */
    int64_t layer_step;   /* floats from one to the next */
    const Reading *const *readings; /* of each layer, the last one's of the kept tokens */
    const Angles *angles;
    const int64_t *keep; /* [Q] */
    int64_t num_tokens, num_kept;
    int32_t threads;
} Step;

/* Where rows lie: those of a step, and in the last layer those that are kept. */
typedef struct {
    int64_t num;
    float *hidden, *normed, *delta; /* [num, width] */
    float *fused;                   /* [num, H + 2 G, size] */
    float *mixed;                   /* [num, H, size] */
    float *gates, *gated;           /* [num, 2 num_gates], [num, num_gates] */
    const float *queries;
    int64_t query_step;
} Rows;

/* Floats that each token and each kept token needs. */
static int64_t token_floats(const Decoder *decoder) {
    int64_t heads = 2 * (decoder->num_heads + decoder->num_groups) * decoder->size;
    int64_t gates = 3 * decoder->num_gates;
    return 2 * decoder->width + (heads > gates ? heads : gates);
}

static int64_t kept_floats(const Decoder *decoder) {
    return decoder->width + decoder->num_heads * decoder->size;
}

/* Floats of `room` for a step of so many tokens. */
EXPORT int64_t mmserve_layers_room(const Decoder *decoder, int64_t num_tokens, int64_t num_kept) {
    return num_tokens * token_floats(decoder) + num_kept * kept_floats(decoder);
}

static Rows rows_of(const Decoder *decoder, const Step *step) {
    int64_t num = step->num_tokens, size = decoder->size;
    int64_t fused_step = (decoder->num_heads + 2 * decoder->num_groups) * size;
    Rows rows = {.num = num, .hidden = step->hidden, .query_step = fused_step};
    rows.normed = step->room;
    rows.delta = rows.normed + num * decoder->width;
    rows.fused = rows.delta + num * decoder->width; /* done with before there are gates */
    rows.mixed = rows.fused + num * fused_step;
    rows.gates = rows.fused;
    rows.gated = rows.gates + num * 2 * decoder->num_gates;
    rows.queries = rows.fused;
    return rows;
}

/* Queries of all tokens in `fused`, normed, turned and scaled; keys and values are stored. */
static void project(const Member *me, const Decoder *decoder, const Step *step, long number,
                    const Rows *rows) {
    const Layer *layer = decoder->layers + number;
    int64_t size = decoder->size, num_heads = decoder->num_heads, num = rows->num;
    int64_t row_step = rows->query_step;
    multiply(me, rows->normed, rows->fused, num, layer->qkv);
    meet(me);
    if (layer->query_norm && layer->key_norm) { /* a member's own rows, from here to the end */
        norm_heads(me, rows->fused, layer->query_norm, num, row_step, num_heads, size,
                   decoder->eps);
        norm_heads(me, rows->fused + num_heads * size, layer->key_norm, num, row_step,
                   decoder->num_groups, size, decoder->eps);
    }
    Target target = *step->target;
    target.keys = step->keys + number * step->layer_step;
    target.values = step->values + number * step->layer_step;
    Angles angles = {NULL, NULL, 0};
    if (layer->rope >= 0) angles = step->angles[layer->rope];
    turn_and_write(me, &target, rows->fused, row_step, num_heads, &angles, angles.num_pairs);
    long r, end;
    part_of(me, num, &r, &end);
    for (; decoder->query_scale != 1.0f && r < end; r++)
        for (int64_t i = 0; i < num_heads * size; i++)
            rows->fused[r * row_step + i] *= decoder->query_scale;
    meet(me);
}

/* Go on with the kept rows alone: their hidden states and queries are copied. */
static void keep_some(const Member *me, const Decoder *decoder, const Step *step, Rows *rows) {
    int64_t width = decoder->width, query_size = decoder->num_heads * decoder->size;
    float *hidden = step->room + rows->num * token_floats(decoder);
    float *queries = hidden + step->num_kept * width;
    long q, end;
    for (part_of(me, step->num_kept, &q, &end); q < end; q++) {
        int64_t token = step->keep[q];
        memcpy(hidden + q * width, rows->hidden + token * width, 4 * (size_t)width);
        memcpy(queries + q * query_size, rows->fused + token * rows->query_step,
               4 * (size_t)query_size);
    }
    rows->num = step->num_kept;
    rows->hidden = hidden;
    rows->queries = queries;
    rows->query_step = query_size;
    meet(me);
}

/* hidden += delta, normed if it has a gain; then the norm of the sum. */
static void add(const Member *me, const Decoder *decoder, const Rows *rows, const float *delta_gain,
                const float *gain, float *normed) {
    if (delta_gain)
        norm_rows(me, rows->delta, delta_gain, rows->delta, rows->num, decoder->width,
                  decoder->eps);
    add_norm_rows(me, rows->hidden, rows->delta, gain, normed, rows->num, decoder->width,
                  decoder->eps);
    meet(me);
}

typedef struct {
    const Decoder *decoder;
    const Step *step;
    int has_failed;
} Call;

/* What one member does of all layers; rows are each member's own, and alike. */
static void layers_work(const Member *me, void *what) {
    Call *call = what;
    const Decoder *decoder = call->decoder;
    const Step *step = call->step;
    Rows rows = rows_of(decoder, step);
    norm_rows(me, rows.hidden, decoder->layers[0].before_attention, rows.normed, rows.num,
              decoder->width, decoder->eps);
    meet(me);
    for (int64_t number = 0; number < decoder->num_layers; number++) {
        const Layer *layer = decoder->layers + number;
        int is_last = number == decoder->num_layers - 1;
        project(me, decoder, step, number, &rows);
        if (is_last && !step->num_kept) break;
        if (is_last) keep_some(me, decoder, step, &rows);
        Asking asking = {number, rows.queries, rows.query_step, decoder->size, rows.mixed};
        attend(me, step->readings[number], &asking);
        meet(me);
        multiply(me, rows.mixed, rows.delta, rows.num, layer->out);
        meet(me);
        add(me, decoder, &rows, layer->after_attention, layer->before_mlp, rows.normed);
        multiply(me, rows.normed, rows.gates, rows.num, layer->gate_up);
        meet(me);
        gate_rows(me, rows.gates, rows.gated, rows.num, decoder->num_gates, decoder->is_gelu);
        meet(me);
        multiply(me, rows.gated, rows.delta, rows.num, layer->down);
        meet(me);
        add(me, decoder, &rows, layer->after_mlp,
            is_last ? decoder->final_norm : layer[1].before_attention,
            is_last ? step->out : rows.normed);
    }
    if (me->number == 0) call->has_failed = atomic_exchange(&me->team->failed, 0);
}

/* Normed outputs of the kept tokens; 0 if all went well, else there is no memory.
   Changes: hidden, out, room, the store. */
EXPORT int mmserve_layers(const Decoder *decoder, const Step *step) {
    Call call = {decoder, step, 0};
    together(step->threads, layers_work, &call);
    return call.has_failed;
}
