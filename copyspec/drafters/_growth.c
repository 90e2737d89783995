/* Growing one tree from many cursors, best first: `growth.grow_in_python` in C, for the same trees in a tenth of the time.
 *
 * growth.py is the description of what happens here, function by function and sum by sum in the same order, so that
 * scores agree to the last bit and ties fall alike; tests/test_drafters_growth.py holds the two against each other.
 * Nothing is kept between calls, and no Python code runs in between: borrowed references stay valid.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define ROOT (-1)
#define NOWHERE (-1)
#define CHILDREN (-2) /* in place of a token in a heap, as in growth.py */
#define COPY (-3)
#define MATCH_LENGTHS 64 /* more than there are; `make_tables` checks */
#define KINDS 4

/* What never changes: the tables of situations.py, and the constants of growth.py and ngrams.py. */
typedef struct {
    Py_ssize_t states;
    int *following, *length, *crowd_row; /* [states] */
    int company[32], companies;
    int gaps;
    Py_ssize_t crowds; /* entries of the crowd table, at least */
    int joined[KINDS];
    int written; /* the kind of a position in the output */
    Py_ssize_t join, keep, most_words;
    int key_bits, orders;
    double least_score, sure, later, later_copy, open_root, open_deeper, fewest, least_share;
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
    Py_ssize_t position;
    Group group;
} Vote;

typedef struct {
    double score; /* negative: the least comes first */
    int64_t token;
    Py_ssize_t order, parent, position;
    Group group;
} Entry;

typedef struct {
    int64_t token;
    double share;
} Word;

/* An array that grows. */
#define ARRAY(Type) struct { Type *items; Py_ssize_t count, room; }

typedef struct {
    const Tables *tables;
    PyObject *text, *kinds, *places, *written, *at_root, *deeper, *crowds; /* borrowed */
    Py_ssize_t end, output_start;
    double none_at_root, none_deeper, language;
    /* The n-grams; no contexts: there are none. */
    PyObject *contexts;
    Py_buffer buffers[5];
    int held; /* how many of them */
    const int64_t *starts, *stops, *tokens;
    const double *shares, *left;
    uint64_t context;
    /* The tree: by node. */
    Py_ssize_t nodes;
    int64_t *token;
    Py_ssize_t *parent, *position, *depth;
    double *score;
    Group *group;
    ARRAY(Cursor) cursors;
    ARRAY(Entry) heap;
    ARRAY(Vote) votes;
    ARRAY(Word) words;
} Draft;

/* Room for one item more; 0, or -1 with an exception. */
static int
reserve(void **items, Py_ssize_t *room, Py_ssize_t count, size_t size)
{
    if (count < *room) {
        return 0;
    }
    Py_ssize_t larger = *room ? 2 * *room : 64;
    void *moved = PyMem_Realloc(*items, (size_t)larger * size);
    if (moved == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *items = moved;
    *room = larger;
    return 0;
}

#define ADD(array, item)                                                                                   \
    (reserve((void **)&(array).items, &(array).room, (array).count, sizeof(*(array).items)) < 0            \
         ? -1                                                                                              \
         : ((array).items[(array).count++] = (item), 0))

/* Item `index` of a list or tuple of numbers. An exception may be set afterwards. */
static inline double
number(PyObject *sequence, Py_ssize_t index)
{
    PyObject *item = PySequence_Fast_GET_ITEM(sequence, index);
    return PyFloat_CheckExact(item) ? PyFloat_AS_DOUBLE(item) : PyFloat_AsDouble(item);
}

static inline int64_t
integer(PyObject *list, Py_ssize_t index)
{
    return PyLong_AsLongLong(PyList_GET_ITEM(list, index));
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

static double
sum_of_weights(const Vote *votes, Py_ssize_t count)
{
    Sum sum = {0.0, 0.0};
    for (Py_ssize_t i = 0; i < count; i++) {
        add_to(&sum, votes[i].weight);
    }
    return sum.sum + sum.lost;
}

static Vote *
find_vote(Draft *draft, int64_t token)
{
    for (Py_ssize_t i = 0; i < draft->votes.count; i++) {
        if (draft->votes.items[i].token == token) {
            return &draft->votes.items[i];
        }
    }
    return NULL;
}

static int
add_vote(Draft *draft, int64_t token, double weight, Py_ssize_t position)
{
    Vote vote = {weight, weight, token, position, {0, 0}};
    return ADD(draft->votes, vote);
}

/* `growth._add_words`: weights of tokens that no cursor need stand at. */
static int
add_word(Draft *draft, int64_t token, double weight)
{
    Vote *vote = find_vote(draft, token);
    if (vote == NULL) {
        return add_vote(draft, token, weight, NOWHERE);
    }
    vote->weight += weight;
    return 0;
}

/* One cursor's word, weighed; the cursor itself goes into a group by `group_cursors`. */
static int
cast_vote(Draft *draft, int64_t token, double weight, Py_ssize_t position)
{
    Vote *vote = find_vote(draft, token);
    if (vote == NULL) {
        return add_vote(draft, token, weight, position);
    }
    vote->weight += weight;
    if (weight > vote->heaviest) {
        vote->heaviest = weight;
        vote->position = position;
    }
    return 0;
}

/* Gives each vote its cursors, moved on and next to each other, at most `keep` of them. `said` [group.count] holds what
 * each cursor of the group said, below 0 where it was nothing. */
static int
group_cursors(Draft *draft, Group group, const int64_t *said)
{
    for (Py_ssize_t i = 0; i < draft->votes.count; i++) {
        Vote *vote = &draft->votes.items[i];
        vote->group.first = draft->cursors.count;
        for (Py_ssize_t j = 0; j < group.count && draft->cursors.count - vote->group.first < draft->tables->keep; j++) {
            if (said[j] == vote->token) {
                Cursor cursor = draft->cursors.items[group.first + j];
                cursor.at++;
                cursor.state = draft->tables->following[cursor.state];
                if (ADD(draft->cursors, cursor) < 0) {
                    return -1;
                }
            }
        }
        vote->group.count = draft->cursors.count - vote->group.first;
    }
    return 0;
}

/* `growth._ancestor`: the node at `index` on the path to `node`; below 0 with an exception. */
static Py_ssize_t
ancestor(const Draft *draft, Py_ssize_t node, Py_ssize_t index)
{
    Py_ssize_t depth = node == ROOT ? 0 : draft->depth[node];
    if (index >= depth) {
        PyErr_SetString(PyExc_IndexError, "a cursor stands behind what has been drafted");
        return -1;
    }
    for (; depth > index + 1; depth--) {
        node = draft->parent[node];
    }
    return node;
}

/* `growth._vote`: fills `votes` with what the cursors of `group` say comes after `node`. */
static int
vote(Draft *draft, Group group, Py_ssize_t node)
{
    const Tables *tables = draft->tables;
    PyObject *weights = node == ROOT ? draft->at_root : draft->deeper;
    int64_t few[64], *said = few;
    int result = -1;

    draft->votes.count = 0;
    if (group.count == 0) {
        return 0;
    }
    const Cursor *cursors = draft->cursors.items + group.first;
    if (group.count == 1 && cursors->at < draft->end) {
        int64_t token = integer(draft->text, cursors->at);
        if (token < 0) {
            return 0;
        }
        if (add_vote(draft, token, number(weights, cursors->state), cursors->at) < 0) {
            return -1;
        }
        return group_cursors(draft, group, &token);
    }
    /* How many have each length of match, and the column of the crowd table that this makes. */
    int counts[MATCH_LENGTHS] = {0}, columns[MATCH_LENGTHS] = {0}, longest = 0;
    for (Py_ssize_t i = 0; i < group.count; i++) {
        int length = tables->length[cursors[i].state];
        counts[length]++;
        longest = length > longest ? length : longest;
    }
    for (int length = 0; length <= longest && group.count > 1; length++) {
        int gap = longest - length;
        int company = counts[length] < tables->companies ? counts[length] : tables->companies - 1;
        columns[length] = tables->company[company] + (gap < tables->gaps ? gap : tables->gaps - 1);
    }
    if (group.count > 64) {
        said = PyMem_New(int64_t, group.count);
        if (said == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < group.count; i++) {
        Cursor cursor = cursors[i];
        Py_ssize_t position = cursor.at;
        if (cursor.at < draft->end) {
            said[i] = integer(draft->text, cursor.at);
        } else {
            Py_ssize_t drafted = ancestor(draft, node, cursor.at - draft->end);
            if (drafted < 0) {
                goto done;
            }
            said[i] = draft->token[drafted];
            position = draft->position[drafted];
        }
        if (said[i] < 0) {
            continue;
        }
        double weight = number(weights, cursor.state) *
                        number(draft->crowds, tables->crowd_row[cursor.state] + columns[tables->length[cursor.state]]);
        if (cast_vote(draft, said[i], weight, position) < 0) {
            goto done;
        }
    }
    result = group_cursors(draft, group, said);
done:
    if (said != few) {
        PyMem_Free(said);
    }
    return result;
}

/* The last positions after `token` in `index`, a dictionary of lists, as cursors behind the last group. */
static int
add_places(Draft *draft, PyObject *index, int64_t token, Group without)
{
    const Tables *tables = draft->tables;
    PyObject *key = PyLong_FromLongLong(token);
    if (key == NULL) {
        return -1;
    }
    PyObject *places = PyDict_GetItemWithError(index, key);
    Py_DECREF(key);
    if (places == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (!PyList_Check(places)) {
        PyErr_SetString(PyExc_TypeError, "places are listed by token");
        return -1;
    }
    Py_ssize_t count = PyList_GET_SIZE(places);
    for (Py_ssize_t i = count > tables->join ? count - tables->join : 0; i < count; i++) {
        Py_ssize_t position = (Py_ssize_t)integer(places, i);
        int known = position == draft->end; /* nothing comes after it yet */
        for (Py_ssize_t j = 0; j < without.count && !known; j++) {
            known = draft->cursors.items[without.first + j].at == position;
        }
        if (known) {
            continue;
        }
        int64_t kind = -1;
        if (position >= 0 && position < draft->end) {
            kind = position < draft->output_start ? integer(draft->kinds, position) : tables->written;
        }
        if (kind < 0 || kind >= KINDS) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "position %zd of the text is of no kind", position);
            }
            return -1;
        }
        Cursor cursor = {position, tables->joined[kind]};
        if (ADD(draft->cursors, cursor) < 0) {
            return -1;
        }
    }
    return 0;
}

/* `growth.join`: `group` with the places that agree with the drafted path by its last token only. */
static int
join(Draft *draft, int64_t token, Group *group)
{
    Group joined = {draft->cursors.count, group->count};
    for (Py_ssize_t i = 0; i < group->count; i++) {
        Cursor cursor = draft->cursors.items[group->first + i];
        if (ADD(draft->cursors, cursor) < 0) {
            return -1;
        }
    }
    if (add_places(draft, draft->places, token, *group) < 0 || add_places(draft, draft->written, token, *group) < 0) {
        return -1;
    }
    joined.count = draft->cursors.count - joined.first;
    *group = joined;
    return 0;
}

static uint64_t
key_mask(const Tables *tables, int tokens)
{
    return ((uint64_t)1 << tables->key_bits * tokens) - 1;
}

/* `ngrams.context` and `growth._context`: the key of the n-grams' context that ends with `node`. */
static uint64_t
context_at(const Draft *draft, Py_ssize_t node)
{
    const Tables *tables = draft->tables;
    uint64_t key = 0;
    int shift = 0;
    for (; node != ROOT; node = draft->parent[node]) {
        key |= (uint64_t)(draft->token[node] + 1) << shift;
        shift += tables->key_bits;
        if (shift == tables->key_bits * tables->orders) {
            return key;
        }
    }
    return (draft->context << shift | key) & key_mask(tables, tables->orders);
}

/* `NGrams.share_out`: fills `words` with (token, part of `weight`), of parts of `least` or more. */
static int
share_out(Draft *draft, double weight, uint64_t key, double least)
{
    const Tables *tables = draft->tables;
    Group said[8]; /* spans of `tokens`, of longer contexts */
    int spans = 0;

    draft->words.count = 0;
    if (least < tables->least_share * weight) {
        least = tables->least_share * weight;
    }
    for (int tokens = tables->orders - 1; key != 0; tokens--) {
        PyObject *number_of = PyLong_FromUnsignedLongLong(key);
        if (number_of == NULL) {
            return -1;
        }
        PyObject *found = PyDict_GetItemWithError(draft->contexts, number_of);
        Py_DECREF(number_of);
        if (found == NULL && PyErr_Occurred()) {
            return -1;
        }
        if (found != NULL) {
            Py_ssize_t place = PyLong_AsSsize_t(found);
            if (place < 0 || place >= draft->buffers[0].len / (Py_ssize_t)sizeof(int64_t)) {
                PyErr_SetString(PyExc_ValueError, "a context of the n-grams has no place");
                return -1;
            }
            Group span = {(Py_ssize_t)draft->starts[place], (Py_ssize_t)(draft->stops[place] - draft->starts[place])};
            for (Py_ssize_t i = span.first; i < span.first + span.count; i++) {
                Word word = {draft->tokens[i], weight * draft->shares[i]};
                if (word.share < least) {
                    break;
                }
                int known = 0;
                for (int j = 0; j < spans && !known; j++) {
                    for (Py_ssize_t k = said[j].first; k < said[j].first + said[j].count && !known; k++) {
                        known = draft->tokens[k] == word.token;
                    }
                }
                if (!known && ADD(draft->words, word) < 0) {
                    return -1;
                }
            }
            weight *= draft->left[place];
            if (weight < least) {
                break;
            }
            said[spans++] = span;
        }
        /* Without its first token: keys of fewer tokens are those already. */
        while (tokens > 0 && key <= key_mask(tables, tokens)) {
            tokens--;
        }
        key = tokens > 0 ? key & key_mask(tables, tokens) : 0;
    }
    return 0;
}

/* `NGrams.after`: `words` by falling share, equal ones in the order found, at most MOST. */
static void
sort_words(Draft *draft)
{
    Word *words = draft->words.items;
    for (Py_ssize_t i = 1; i < draft->words.count; i++) {
        Word word = words[i];
        Py_ssize_t j = i;
        for (; j > 0 && words[j - 1].share < word.share; j--) {
            words[j] = words[j - 1];
        }
        words[j] = word;
    }
    if (draft->words.count > draft->tables->most_words) {
        draft->words.count = draft->tables->most_words;
    }
}

static int
comes_before(const Entry *a, const Entry *b)
{
    if (a->score != b->score) {
        return a->score < b->score;
    }
    if (a->order != b->order) {
        return a->order < b->order;
    }
    return a->token != b->token ? a->token < b->token : a->parent < b->parent;
}

static int
push(Draft *draft, Entry entry)
{
    if (ADD(draft->heap, entry) < 0) {
        return -1;
    }
    Entry *heap = draft->heap.items;
    Py_ssize_t at = draft->heap.count - 1;
    while (at > 0 && comes_before(&entry, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = entry;
    return 0;
}

static Entry
pop(Draft *draft)
{
    Entry *heap = draft->heap.items, first = heap[0], last = heap[--draft->heap.count];
    Py_ssize_t at = 0, count = draft->heap.count;
    for (;;) {
        Py_ssize_t child = 2 * at + 1;
        if (child >= count) {
            break;
        }
        if (child + 1 < count && comes_before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!comes_before(&heap[child], &last)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    if (count > 0) {
        heap[at] = last;
    }
    return first;
}

/* `growth.children`, their entries pushed as far as their scores are above `least`. */
static int
push_children(Draft *draft, Group group, Py_ssize_t node, Py_ssize_t order, double least)
{
    const Tables *tables = draft->tables;
    int sure = 0;
    if (group.count > 0) {
        Sum weight = {0.0, 0.0};
        for (Py_ssize_t i = 0; i < group.count; i++) {
            add_to(&weight, number(draft->deeper, draft->cursors.items[group.first + i].state));
        }
        sure = weight.sum + weight.lost >= tables->sure;
        if (!sure && join(draft, draft->token[node], &group) < 0) {
            return -1;
        }
        draft->group[node] = group;
    } else {
        /* `growth._vote_after`: of the cursors that would join, none of which the node keeps. */
        if (join(draft, draft->token[node], &group) < 0) {
            return -1;
        }
    }
    if (vote(draft, group, node) < 0) {
        return -1;
    }
    double none = draft->none_deeper, score = draft->score[node];
    double total = none + sum_of_weights(draft->votes.items, draft->votes.count);
    if (draft->contexts != NULL && none * score >= tables->open_deeper * total && !(sure && group.count == 1)) {
        if (share_out(draft, none * draft->language, context_at(draft, node), tables->fewest / score * total) < 0) {
            return -1;
        }
        for (Py_ssize_t i = 0; i < draft->words.count; i++) {
            if (add_word(draft, draft->words.items[i].token, draft->words.items[i].share) < 0) {
                return -1;
            }
        }
    }
    double share = -score / total;
    for (Py_ssize_t i = 0; i < draft->votes.count; i++) {
        Vote *each = &draft->votes.items[i];
        Entry entry = {each->weight * share, each->token, order, node, each->position, each->group};
        if (-entry.score > least && push(draft, entry) < 0) {
            return -1;
        }
    }
    return 0;
}

/* What `grow` returns of the root: (tokens offered, their probability, key of the context, words). */
typedef struct {
    PyObject *offered, *words;
    double covered;
} Roots;

/* `growth.roots`: pushes what may come first. */
static int
push_roots(Draft *draft, Group group, PyObject *common_weights, PyObject *common, Roots *roots)
{
    const Tables *tables = draft->tables;
    if (vote(draft, group, ROOT) < 0) {
        return -1;
    }
    Py_ssize_t said = draft->votes.count, ranks = PyList_GET_SIZE(common);
    for (Py_ssize_t i = 0; i < said; i++) {
        PyObject *token = PyLong_FromLongLong(draft->votes.items[i].token);
        int failed = token == NULL || PySet_Add(roots->offered, token) < 0;
        Py_XDECREF(token);
        if (failed) {
            return -1;
        }
    }
    /* Common tokens are votes too, behind the others, until they turn out to be too few. */
    for (Py_ssize_t rank = 0; rank < ranks; rank++) {
        int64_t token = integer(common, rank);
        int known = 0;
        for (Py_ssize_t i = 0; i < said && !known; i++) {
            known = draft->votes.items[i].token == token;
        }
        if (PySet_Add(roots->offered, PyList_GET_ITEM(common, rank)) < 0) {
            return -1;
        }
        if (!known && rank < PyList_GET_SIZE(common_weights) &&
            add_vote(draft, token, number(common_weights, rank), NOWHERE) < 0) {
            return -1;
        }
    }
    double none = draft->none_at_root;
    double total = none + sum_of_weights(draft->votes.items, said);
    total += sum_of_weights(draft->votes.items + said, draft->votes.count - said);
    roots->covered = 1.0 - none / total;
    double least = tables->fewest * total;
    for (Py_ssize_t i = said; i < draft->votes.count; i++) {
        if (draft->votes.items[i].weight < least) { /* beside a sure copy all are */
            draft->votes.count = i;
        }
    }
    if (draft->contexts != NULL && none >= tables->open_root * total) {
        double weight = none * draft->language;
        if (share_out(draft, 1.0, draft->context, tables->least_share) < 0) {
            return -1;
        }
        sort_words(draft);
        roots->words = PyList_New(draft->words.count);
        for (Py_ssize_t i = 0; roots->words != NULL && i < draft->words.count; i++) {
            Word word = draft->words.items[i];
            PyObject *pair = Py_BuildValue("(Ld)", (long long)word.token, word.share);
            if (pair == NULL) {
                return -1;
            }
            PyList_SET_ITEM(roots->words, i, pair);
            if (weight * word.share >= least && add_word(draft, word.token, weight * word.share) < 0) {
                return -1;
            }
        }
    } else {
        roots->words = PyTuple_New(0);
    }
    if (roots->words == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < draft->votes.count; i++) {
        Vote *each = &draft->votes.items[i];
        Entry entry = {-each->weight / total, each->token, 0, ROOT, each->position, each->group};
        if (push(draft, entry) < 0) {
            return -1;
        }
    }
    return 0;
}

static void
add_node(Draft *draft, int64_t token, Py_ssize_t parent, double score, Py_ssize_t position, Group group)
{
    Py_ssize_t node = draft->nodes++;
    draft->token[node] = token;
    draft->parent[node] = parent;
    draft->score[node] = score;
    draft->position[node] = position;
    draft->group[node] = group;
    draft->depth[node] = parent == ROOT ? 1 : draft->depth[parent] + 1;
}

/* The loop of `growth.grow_in_python`. */
static int
grow_tree(Draft *draft, Py_ssize_t max_nodes, PyObject *costs)
{
    const Tables *tables = draft->tables;
    Py_ssize_t prices = PySequence_Fast_GET_SIZE(costs), order = 1;
    double cheapest = 0.0, expected = 1.0;
    for (Py_ssize_t n = 1; n < prices; n++) {
        double more = number(costs, n) - number(costs, n - 1);
        cheapest = n == 1 || more < cheapest ? more : cheapest;
    }
    double least = cheapest > tables->least_score ? cheapest : tables->least_score;
    while (draft->heap.count > 0 && -draft->heap.items[0].score > tables->later * least) {
        Entry entry = pop(draft);
        if (entry.token == CHILDREN) {
            if (draft->score[entry.parent] > least) {
                if (push_children(draft, entry.group, entry.parent, order, least) < 0) {
                    return -1;
                }
                order++;
            }
            continue;
        }
        if (entry.token == COPY) {
            entry.score = -draft->score[entry.parent];
        }
        for (;;) { /* along a copy, until something else comes first */
            if (entry.token == COPY) {
                Cursor cursor = draft->cursors.items[entry.group.first];
                double weight = number(draft->deeper, cursor.state);
                entry.position = cursor.at;
                entry.token = integer(draft->text, cursor.at);
                entry.score *= weight / (weight + draft->none_deeper);
                cursor.at++;
                cursor.state = tables->following[cursor.state];
                entry.group.first = draft->cursors.count;
                if (ADD(draft->cursors, cursor) < 0) {
                    return -1;
                }
            }
            if (-entry.score <= least) {
                break;
            }
            if (prices > 0) {
                if (draft->nodes + 1 >= prices) {
                    PyErr_SetString(PyExc_IndexError, "a budget has a cost for every number of nodes that it allows");
                    return -1;
                }
                expected -= entry.score;
                double needed = cheapest * expected / number(costs, draft->nodes + 1);
                least = needed > least ? needed : least;
            }
            add_node(draft, entry.token, entry.parent, -entry.score, entry.position, entry.group);
            entry.parent = draft->nodes - 1;
            order++;
            if (draft->nodes == max_nodes) {
                return 0;
            }
            Entry next = {entry.score * tables->later, CHILDREN, order, entry.parent, NOWHERE, entry.group};
            if (entry.group.count == 1) {
                Cursor cursor = draft->cursors.items[entry.group.first];
                next.score = entry.score * tables->later_copy;
                if (cursor.at < draft->end && number(draft->deeper, cursor.state) >= tables->sure &&
                    integer(draft->text, cursor.at) >= 0) {
                    next.token = entry.token = COPY;
                    if (draft->heap.count == 0 || next.score < draft->heap.items[0].score) {
                        continue;
                    }
                }
            }
            if (push(draft, next) < 0) {
                return -1;
            }
            break;
        }
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void
free_tables(PyObject *capsule)
{
    Tables *tables = PyCapsule_GetPointer(capsule, "copyspec.Tables");
    if (tables != NULL) {
        PyMem_Free(tables->following);
        PyMem_Free(tables->length);
        PyMem_Free(tables->crowd_row);
        PyMem_Free(tables);
    }
}

/* The integers of a list, from 0 to below `most`, in memory of our own; NULL with an exception. */
static int *
integers(PyObject *list, long most)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    int *numbers = PyMem_New(int, count + 1);
    if (numbers == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        long each = PyLong_AsLong(PyList_GET_ITEM(list, i));
        if (each < 0 || each >= most) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "a table holds %ld; from 0 to %ld are known", each, most - 1);
            }
            PyMem_Free(numbers);
            return NULL;
        }
        numbers[i] = (int)each;
    }
    return numbers;
}

PyDoc_STRVAR(make_tables_doc,
             "make_tables(following, length, crowd_row, company, joined, gaps, written, join, keep, key_bits, orders, "
             "most_words, least_score, sure, later, later_copy, open_root, open_deeper, fewest, least_share)\n\n"
             "What never changes from call to call, for `grow`: the tables of situations.py, and constants.");

static PyObject *
make_tables(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *following, *length, *crowd_row, *company, *joined;
    Tables *tables = PyMem_Calloc(1, sizeof(Tables));
    if (tables == NULL) {
        return PyErr_NoMemory();
    }
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!iinniindddddddd", &PyList_Type, &following, &PyList_Type, &length, &PyList_Type,
                          &crowd_row, &PyList_Type, &company, &PyList_Type, &joined, &tables->gaps, &tables->written,
                          &tables->join, &tables->keep, &tables->key_bits, &tables->orders, &tables->most_words,
                          &tables->least_score, &tables->sure, &tables->later, &tables->later_copy, &tables->open_root,
                          &tables->open_deeper, &tables->fewest, &tables->least_share)) {
        PyMem_Free(tables);
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(tables, "copyspec.Tables", free_tables); /* frees what follows too */
    if (capsule == NULL) {
        PyMem_Free(tables);
        return NULL;
    }
    tables->states = PyList_GET_SIZE(following);
    tables->companies = (int)PyList_GET_SIZE(company);
    int *companies = NULL, *joins = NULL;
    tables->following = integers(following, (long)tables->states);
    tables->length = tables->following ? integers(length, MATCH_LENGTHS) : NULL;
    tables->crowd_row = tables->length ? integers(crowd_row, INT_MAX) : NULL;
    companies = tables->crowd_row ? integers(company, INT_MAX) : NULL;
    joins = companies ? integers(joined, (long)tables->states) : NULL;
    if (joins != NULL) {
        if (PyList_GET_SIZE(length) == tables->states && PyList_GET_SIZE(crowd_row) == tables->states &&
            tables->companies > 0 && tables->companies <= 32 && PyList_GET_SIZE(joined) == KINDS && tables->written >= 0 &&
            tables->written < KINDS && tables->key_bits > 0 && tables->orders > 0 && tables->orders <= 8 &&
            tables->key_bits * tables->orders < 64) {
            memcpy(tables->company, companies, sizeof(int) * (size_t)tables->companies);
            memcpy(tables->joined, joins, sizeof(tables->joined));
            int row = 0, column = 0;
            for (Py_ssize_t i = 0; i < tables->states; i++) {
                row = tables->crowd_row[i] > row ? tables->crowd_row[i] : row;
            }
            for (int i = 0; i < tables->companies; i++) {
                column = companies[i] > column ? companies[i] : column;
            }
            tables->crowds = (Py_ssize_t)row + column + tables->gaps;
        } else {
            PyErr_SetString(PyExc_ValueError, "the tables do not fit each other");
        }
    }
    PyMem_Free(companies);
    PyMem_Free(joins);
    if (PyErr_Occurred()) {
        Py_DECREF(capsule);
        return NULL;
    }
    return capsule;
}

/* Takes the arrays of an NGrams: (contexts, starts, stops, tokens, shares, left). */
static int
take_ngrams(Draft *draft, PyObject *arrays)
{
    PyObject *parts[5];
    if (!PyArg_ParseTuple(arrays, "O!OOOOO", &PyDict_Type, &draft->contexts, &parts[0], &parts[1], &parts[2], &parts[3],
                          &parts[4])) {
        return -1;
    }
    for (; draft->held < 5; draft->held++) {
        Py_buffer *buffer = &draft->buffers[draft->held];
        if (PyObject_GetBuffer(parts[draft->held], buffer, PyBUF_SIMPLE) < 0) {
            return -1;
        }
        if (buffer->itemsize != sizeof(int64_t)) {
            PyBuffer_Release(buffer);
            PyErr_SetString(PyExc_ValueError, "arrays of n-grams hold numbers of 64 bits");
            return -1;
        }
    }
    draft->starts = draft->buffers[0].buf;
    draft->stops = draft->buffers[1].buf;
    draft->tokens = draft->buffers[2].buf;
    draft->shares = draft->buffers[3].buf;
    draft->left = draft->buffers[4].buf;
    uint64_t key = 0;
    for (Py_ssize_t at = draft->end > draft->tables->orders ? draft->end - draft->tables->orders : 0; at < draft->end; at++) {
        int64_t token = integer(draft->text, at);
        key = token >= 0 ? key << draft->tables->key_bits | (uint64_t)(token + 1) : 0;
    }
    draft->context = key;
    return 0;
}

/* The cursors of a list of pairs, as the first group. */
static int
take_cursors(Draft *draft, PyObject *list, Group *group)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyList_GET_ITEM(list, i);
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2) {
            PyErr_Format(PyExc_TypeError, "a cursor is a position and a situation, got %R", pair);
            return -1;
        }
        long long at = PyLong_AsLongLong(PyTuple_GET_ITEM(pair, 0));
        long state = PyLong_AsLong(PyTuple_GET_ITEM(pair, 1));
        if (at < 0 || state < 0 || state >= draft->tables->states) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "no cursor: %R", pair);
            }
            return -1;
        }
        Cursor cursor = {(Py_ssize_t)at, (int)state};
        if (ADD(draft->cursors, cursor) < 0) {
            return -1;
        }
    }
    group->first = 0;
    group->count = count;
    return 0;
}

static PyObject *
cursor_list(const Draft *draft, Group group)
{
    PyObject *list = PyList_New(group.count);
    for (Py_ssize_t i = 0; list != NULL && i < group.count; i++) {
        Cursor cursor = draft->cursors.items[group.first + i];
        PyObject *pair = PyTuple_New(2), *at = PyLong_FromSsize_t(cursor.at), *state = PyLong_FromLong(cursor.state);
        if (pair == NULL || at == NULL || state == NULL) {
            Py_XDECREF(pair);
            Py_XDECREF(at);
            Py_XDECREF(state);
            Py_DECREF(list);
            return NULL;
        }
        PyTuple_SET_ITEM(pair, 0, at);
        PyTuple_SET_ITEM(pair, 1, state);
        PyList_SET_ITEM(list, i, pair);
    }
    return list;
}

/* (tokens, parents, scores, positions, cursors), a list each. */
static PyObject *
node_lists(const Draft *draft)
{
    PyObject *lists[5] = {NULL};
    int failed = 0;
    for (int i = 0; i < 5; i++) {
        lists[i] = PyList_New(draft->nodes);
        failed |= lists[i] == NULL;
    }
    for (Py_ssize_t node = 0; node < draft->nodes && !failed; node++) {
        PyObject *items[5] = {
            PyLong_FromLongLong(draft->token[node]),   PyLong_FromSsize_t(draft->parent[node]),
            PyFloat_FromDouble(draft->score[node]),    PyLong_FromSsize_t(draft->position[node]),
            cursor_list(draft, draft->group[node]),
        };
        for (int i = 0; i < 5; i++) {
            failed |= items[i] == NULL;
            PyList_SET_ITEM(lists[i], node, items[i]);
        }
    }
    PyObject *all = failed ? NULL : PyTuple_Pack(5, lists[0], lists[1], lists[2], lists[3], lists[4]);
    for (int i = 0; i < 5; i++) {
        Py_XDECREF(lists[i]);
    }
    return all;
}

static int
allocate_nodes(Draft *draft, Py_ssize_t count)
{
    draft->token = PyMem_New(int64_t, count);
    draft->parent = PyMem_New(Py_ssize_t, count);
    draft->position = PyMem_New(Py_ssize_t, count);
    draft->depth = PyMem_New(Py_ssize_t, count);
    draft->score = PyMem_New(double, count);
    draft->group = PyMem_New(Group, count);
    if (!draft->token || !draft->parent || !draft->position || !draft->depth || !draft->score || !draft->group) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static void
free_draft(Draft *draft)
{
    for (int i = 0; i < draft->held; i++) {
        PyBuffer_Release(&draft->buffers[i]);
    }
    PyMem_Free(draft->token);
    PyMem_Free(draft->parent);
    PyMem_Free(draft->position);
    PyMem_Free(draft->depth);
    PyMem_Free(draft->score);
    PyMem_Free(draft->group);
    PyMem_Free(draft->cursors.items);
    PyMem_Free(draft->heap.items);
    PyMem_Free(draft->votes.items);
    PyMem_Free(draft->words.items);
}

PyDoc_STRVAR(grow_doc,
             "grow(tables, text, kinds, output_start, places, written, cursors, at_root, deeper, crowds, none_at_root, "
             "none_deeper, language, common_weights, common, max_nodes, costs, ngrams)\n\n"
             "The fields of growth.Grown. `ngrams`: NGrams.arrays, or None.");

static PyObject *
grow(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *cursors, *common_weights, *common, *costs, *ngrams, *result = NULL, *lists = NULL;
    Py_ssize_t max_nodes;
    Draft draft = {0};
    Roots roots = {NULL, NULL, 0.0};
    Group group;

    if (!PyArg_ParseTuple(args, "OO!O!nO!O!O!O!O!OdddO!O!nOO", &capsule, &PyList_Type, &draft.text, &PyList_Type,
                          &draft.kinds, &draft.output_start, &PyDict_Type, &draft.places, &PyDict_Type, &draft.written,
                          &PyList_Type, &cursors, &PyList_Type, &draft.at_root, &PyList_Type, &draft.deeper, &draft.crowds,
                          &draft.none_at_root, &draft.none_deeper, &draft.language, &PyList_Type, &common_weights,
                          &PyList_Type, &common, &max_nodes, &costs, &ngrams)) {
        return NULL;
    }
    draft.tables = PyCapsule_GetPointer(capsule, "copyspec.Tables");
    if (draft.tables == NULL) {
        return NULL;
    }
    draft.end = PyList_GET_SIZE(draft.text);
    costs = PySequence_Fast(costs, "costs are a sequence");
    if (costs == NULL) {
        return NULL;
    }
    if (max_nodes < 1 || PyList_GET_SIZE(draft.at_root) != draft.tables->states || PyList_GET_SIZE(draft.deeper) != draft.tables->states ||
        PyList_GET_SIZE(draft.kinds) < draft.output_start || !(PyList_Check(draft.crowds) || PyTuple_Check(draft.crowds)) ||
        PySequence_Fast_GET_SIZE(draft.crowds) < draft.tables->crowds) {
        PyErr_SetString(PyExc_ValueError, "the arguments of grow() do not fit each other");
        goto done;
    }
    if (ngrams != Py_None && take_ngrams(&draft, ngrams) < 0) {
        goto done;
    }
    roots.offered = PySet_New(NULL);
    if (roots.offered == NULL || allocate_nodes(&draft, max_nodes) < 0 || take_cursors(&draft, cursors, &group) < 0 ||
        push_roots(&draft, group, common_weights, common, &roots) < 0 || grow_tree(&draft, max_nodes, costs) < 0 ||
        PyErr_Occurred()) {
        goto done;
    }
    lists = node_lists(&draft);
    if (lists != NULL) {
        result = Py_BuildValue("(OOOOOOdKO)", PyTuple_GET_ITEM(lists, 0), PyTuple_GET_ITEM(lists, 1),
                               PyTuple_GET_ITEM(lists, 2), PyTuple_GET_ITEM(lists, 3), PyTuple_GET_ITEM(lists, 4),
                               roots.offered, roots.covered, (unsigned long long)draft.context, roots.words);
    }
done:
    Py_DECREF(costs);
    Py_XDECREF(lists);
    Py_XDECREF(roots.offered);
    Py_XDECREF(roots.words);
    free_draft(&draft);
    return result;
}

static PyMethodDef methods[] = {
    {"make_tables", make_tables, METH_VARARGS, make_tables_doc},
    {"grow", grow, METH_VARARGS, grow_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_growth", "growth.grow, compiled.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__growth(void)
{
    return PyModuleDef_Init(&definition);
}
