/* Growing one tree from many cursors, best first: `growth.grow` in C, the same trees in a tenth of the time.
 *
 * growth.py is the description of what happens here, function by function and sum by sum in the same order, so that
 * scores agree to the last bit and ties are broken alike; tests/drafters/test_growth.py compares the two.
 * `grow` keeps nothing between calls, and writes to nothing of the caller's.
 *
 * The arguments may be hostile. Reading one item may run code of its class (`__index__`, `__float__`, `__eq__` of a
 * dictionary's keys), which may change every list and dictionary that is being read. So while that code may run, a
 * reference is held to the item; every index is compared with the length that the list has at that moment; and no
 * borrowed reference is kept across a read, except to the arguments themselves, which the caller holds. Buffers cannot
 * be resized while they are exported, but their contents can change: an index read from one is checked at its use.
 *
 * Functions that return an int return 0, or -1 with an exception.
 */

#ifndef COPYSPEC_DRAFT_H
#define COPYSPEC_DRAFT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef _MSC_VER
#pragma fp_contract(off) /* as -ffp-contract=off */
#endif

#define ROOT (-1)
#define NOWHERE (-1)
#define NOBODY (-1) /* the drafter of a copy, of an n-gram and of a common token */
#define FORK (-2) /* of sources.py: a smaller number in the text is a fork */
#define CHILDREN (-2) /* in place of a token in a heap, as in growth.py */
#define COPY (-3)
#define MATCH_LENGTHS 64 /* more than there are; `make_tables` checks */
#define KINDS 4
#define COMPANIES 32
#define ORDERS 8
#define KEY_BITS 63 /* of a whole key: never a negative int64 */
#define TABLE_END (1 << 24) /* of what a table holds: sums of a few such numbers are integers */

/* Constant over all calls: the tables of situations.py, and the constants of growth.py and ngrams.py. */
typedef struct {
    Py_ssize_t states;
    int *following, *length, *crowd_row, *after_substitute; /* [states] */
    int company[COMPANIES], companies;
    int gaps, crowds; /* the latter: entries of the crowd table, at least */
    int joined[KINDS];
    int written; /* of those: the kind of a position in the output */
    Py_ssize_t max_joining, max_cursors, max_continuations;
    int key_bits, orders, columns;
    double min_score, sure_weight, child_priority, copy_priority, ngram_min_miss_prob_root, ngram_min_miss_prob;
    double min_ngram_score, min_share, predicted_priority, table_min_miss_prob, miss_prob_floor;
} Tables;

typedef struct {
    Py_ssize_t at;
    int state;
} Cursor;

/* Some cursors, next to each other in `Draft.cursors`. */
typedef struct {
    Py_ssize_t first, count;
} Group;

typedef struct {
    double weight, heaviest;
    int64_t token;
    Py_ssize_t position, drafter;
    Group group;
} Vote;

typedef struct {
    double score; /* negative: the least comes first */
    int64_t token;
    Py_ssize_t order, parent, position, drafter;
    Group group;
} Entry;

typedef struct {
    int64_t token;
    double share;
} Word;

/* A node of the tree. */
typedef struct {
    int64_t token;
    double score;
    Py_ssize_t parent, position, drafter, depth;
    Group group;
} Node;

/* An array that grows. */
#define ARRAY(Type) struct { Type *items; Py_ssize_t count, room; }

typedef struct {
    const Tables *tables;
    PyObject *text, *kinds, *places, *written, *at_root, *deeper, *crowds; /* the caller's */
    PyObject *substitutes, *repeated; /* as well */
    Py_ssize_t end;
    double miss_at_root, miss_deeper, ngram_scale;
    /* The n-grams; no contexts: there are none. */
    PyObject *contexts;
    Py_buffer buffers[5];
    int held; /* how many of them */
    const int64_t *starts, *stops, *tokens;
    const double *shares, *left;
    int64_t places_of, words_of; /* entries of `starts`, and of `tokens` */
    uint64_t context;
    PyObject *predictors, *mixes; /* a tuple of the caller's, and a list to be returned */
    int has_model; /* whether a predictor is a model: `growth.PredictorCalls.is_model` */
    ARRAY(Node) nodes;
    ARRAY(Cursor) cursors;
    ARRAY(Entry) heap;
    ARRAY(Vote) votes;
    ARRAY(Word) words;
} Draft;

/* What `grow` returns of the root: the tokens offered, their probability, and the predictions of the n-grams. */
typedef struct {
    PyObject *offered, *words;
    double hit_prob;
} Roots;

/* Room for one item more. `items` points to a pointer of any type, which is therefore copied, not read as another. */
static inline int
reserve(void *items, Py_ssize_t *room, Py_ssize_t count, size_t size)
{
    if (count < *room) {
        return 0;
    }
    void *held, *moved = NULL;
    Py_ssize_t larger = *room ? 2 * *room : 64; /* no overflow: half of what is addressed is held already */
    memcpy(&held, items, sizeof(held));
    if ((size_t)larger <= (size_t)PY_SSIZE_T_MAX / size) {
        moved = PyMem_Realloc(held, (size_t)larger * size);
    }
    if (moved == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(items, &moved, sizeof(moved));
    *room = larger;
    return 0;
}

#define ADD(array, item)                                                                                   \
    (reserve(&(array).items, &(array).room, (array).count, sizeof(*(array).items)) < 0                     \
         ? -1                                                                                              \
         : ((array).items[(array).count++] = (item), 0))

/* pyobjects.c */

/* Item `index` of a list or tuple, held; NULL with an exception where it has none, or none any more. */
PyObject *draft_item(PyObject *sequence, Py_ssize_t index);
/* The value of `item`, to which the caller holds a reference. */
int draft_integer(PyObject *item, int64_t *integer);
/* Item `index` of a list of integers, or of a list or tuple of numbers: of any class, whose conversion may run code. */
int draft_any_integer(PyObject *list, Py_ssize_t index, int64_t *integer);
int draft_any_number(PyObject *sequence, Py_ssize_t index, double *number);
/* -1, with a ValueError of `format`, which holds one %R: `number`. */
int draft_wrong_number(const char *format, double number);

/* The same, faster for what is usual and runs no code. */
static inline int
get_integer(PyObject *list, Py_ssize_t index, int64_t *integer)
{
    if ((size_t)index < (size_t)PyList_GET_SIZE(list)) { /* which none below 0 is */
        PyObject *item = PyList_GET_ITEM(list, index);
        if (PyLong_CheckExact(item)) {
            *integer = PyLong_AsLongLong(item);
            return *integer == -1 && PyErr_Occurred() ? -1 : 0;
        }
    }
    return draft_any_integer(list, index, integer);
}

/* Item `index` of a list or a tuple. */
static inline int
get_token(PyObject *sequence, Py_ssize_t index, int64_t *token)
{
    return PyList_Check(sequence) ? get_integer(sequence, index, token) : draft_any_integer(sequence, index, token);
}

static inline int
get_number(PyObject *sequence, Py_ssize_t index, double *number)
{
    if ((size_t)index < (size_t)Py_SIZE(sequence)) {
        PyObject *item = PySequence_Fast_ITEMS(sequence)[index];
        if (PyFloat_CheckExact(item)) {
            *number = PyFloat_AS_DOUBLE(item);
            return 0;
        }
    }
    return draft_any_number(sequence, index, number);
}

/* A list to be filled, untracked by the garbage collector until it is: before Python 3.12 the collector runs whenever
 * something is allocated, and code that it runs could read items that are not there yet. */
static inline PyObject *
open_list(Py_ssize_t count)
{
    PyObject *list = PyList_New(count);
    if (list != NULL) {
        PyObject_GC_UnTrack(list);
    }
    return list;
}

static inline void
close_list(PyObject *list)
{
    PyObject_GC_Track(list);
}

/* A sum as `sum` of this Python adds floats: from 3.12 on it compensates (Neumaier 1974). */
typedef struct {
    double sum, lost;
} Sum;

static inline void
add_to(Sum *sum, double number)
{
    double next = sum->sum + number;
#if PY_VERSION_HEX >= 0x030C0000
    sum->lost += fabs(sum->sum) >= fabs(number) ? (sum->sum - next) + number : (number - next) + sum->sum;
#endif
    sum->sum = next;
}

/* As in CPython, infinite numbers leave no remainder to add. */
static inline double
summed(Sum sum)
{
    return isfinite(sum.lost) ? sum.sum + sum.lost : sum.sum;
}

/* What the module holds. */
typedef struct {
    PyTypeObject *alignment, *groups;
} State;

/* alignment.c: `align` of the module, and the type of what it makes. */

extern PyType_Spec draft_alignment;
PyObject *draft_align(PyObject *module, PyObject *args);

/* groups.c: the type of the cursors of all nodes. */

extern PyType_Spec draft_groups;
/* Those of a draft, which has no cursors after that. */
PyObject *draft_take_groups(Draft *draft, PyTypeObject *groups);
/* The list of those of a node in `all`, which is of this type or a list of lists. */
PyObject *draft_cursors_of(PyObject *all, Py_ssize_t node, PyTypeObject *groups);
/* Adds those of one more node to `all`. */
int draft_add_cursors(PyObject *all, PyObject *cursors, PyTypeObject *groups);
/* The situation of the first of them: 1, or 0 where there is none; -1 with an exception. */
int draft_first_situation(PyObject *all, Py_ssize_t node, PyTypeObject *groups, int64_t *state);

/* tables.c: `make_tables` of the module. */

PyObject *draft_make_tables(PyObject *module, PyObject *args);

/* places.c: `index` and `extend` of the module. */

PyObject *draft_index(PyObject *module, PyObject *args);
PyObject *draft_extend(PyObject *module, PyObject *args);

/* learning.c: `make_rates` and `walk` of the module. */

PyObject *draft_make_rates(PyObject *module, PyObject *args);
PyObject *draft_walk(PyObject *module, PyObject *args);

/* resumptions.c: `make_odds` and `columns` of the module. */

PyObject *draft_make_odds(PyObject *module, PyObject *args);
PyObject *draft_columns(PyObject *module, PyObject *args);

/* module.c: a draft's arguments and memory. */

/* Takes the arrays of an NGrams: (contexts, starts, stops, tokens, shares, left), and the context that the text ends
 * with. */
int draft_take_ngrams(Draft *draft, PyObject *arrays);
void draft_free(Draft *draft);

/* chain.c: `best_chain` of the module. */

PyObject *draft_best_chain(PyObject *module, PyObject *args);

/* order.c: `arrange` of the module. */

PyObject *draft_arrange(PyObject *module, PyObject *args);

/* votes.c: the next tokens, by cursors. */

/* Whether the output had another token in place of `token`, the one at position `at`: 1, and into `place` the value in
 * `Substitutes.places`; or 0; -1 with an exception. */
int draft_find_substitute(const Draft *draft, Py_ssize_t at, int64_t token, int64_t *place);
/* `growth._vote`: fills `votes` with the next tokens of the cursors of `group`, those of `node`. */
int draft_vote(Draft *draft, Group group, Py_ssize_t node);
/* `growth.forked`: `group` with its cursors that stand at a fork on both of its ways. */
int draft_fork(Draft *draft, Group *group);
/* `growth.join`: `group` with the places that agree with the drafted path by its last token only. */
int draft_join(Draft *draft, int64_t token, Group *group);
/* Adds a vote for a token that has none yet. */
int draft_add_vote(Draft *draft, int64_t token, double weight, Py_ssize_t position);
/* `growth._add_ngrams`, for one of them. */
int draft_add_word(Draft *draft, int64_t token, double weight);
/* One token that predictor `drafter` predicts. */
int draft_add_prediction(Draft *draft, int64_t token, double weight, Py_ssize_t drafter);
/* The weight of `count` votes. */
double draft_weight(const Vote *votes, Py_ssize_t count);
/* `growth.checked_total`: whether `total` is one that weights can be divided by. */
int draft_check_total(double total);

/* ngrams.c: the next tokens, by n-grams. */

/* `ngrams.context`: `key`, and `token` after it. */
uint64_t draft_longer_key(const Tables *tables, uint64_t key, int64_t token);
/* `growth._context`: the key of the n-grams' context that ends with `node`. */
uint64_t draft_context(const Draft *draft, Py_ssize_t node);
/* `NGrams.share_out`: fills `words` with (token, part of `weight`), of parts of `least` or more. */
int draft_share_out(Draft *draft, double weight, uint64_t key, double least);
/* `NGrams.after`: `words` by falling share, equal ones in the order found, at most MAX_CONTINUATIONS. */
void draft_sort_words(Draft *draft);

/* predictions.c: the next tokens, by predictors. */

/* Takes a tuple of `growth.PredictorCalls`. */
int draft_take_predictors(Draft *draft, PyObject *predictors);
/* `growth._mix`: adds the predictions after `node` to the votes, and their weight to `total`. */
int draft_mix(Draft *draft, Py_ssize_t node, double *total);

/* tree.c: the tree, best first. */

/* `growth.roots`: pushes what may come first. */
int draft_push_roots(Draft *draft, Group group, PyObject *common_weights, PyObject *common, Roots *roots);
/* The loop of `growth.grow`. `least`: the score above which a further node would pay. */
int draft_grow(Draft *draft, Py_ssize_t max_nodes, PyObject *costs, double *least);

#endif
