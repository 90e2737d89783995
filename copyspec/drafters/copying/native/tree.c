/* The tree, best first. See draft.h. */

#include "draft.h"

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
    Node *grown = &draft->nodes.items[node]; /* no others are added here, nor by the predictors */
    Sum weights = {0.0, 0.0};
    if (draft_fork(draft, &group) < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < group.count; i++) {
        double weight;
        if (get_number(draft->deeper, draft->cursors.items[group.first + i].state, &weight) < 0) {
            return -1;
        }
        add_to(&weights, weight);
    }
    int sure = summed(weights) >= tables->sure_weight;
    if (!sure && draft_join(draft, grown->token, &group) < 0) {
        return -1;
    }
    if (grown->group.count > 0) { /* a node without a copied token keeps an empty list */
        grown->group = group;
    }
    if (draft_vote(draft, group, node) < 0) {
        return -1;
    }
    double miss_weight = draft->miss_deeper, score = grown->score;
    double total = miss_weight + draft_weight(draft->votes.items, draft->votes.count);
    if (draft_check_total(total) < 0) {
        return -1;
    }
    if (draft->contexts != NULL && miss_weight * score >= tables->ngram_min_miss_prob * total &&
        !(sure && group.count == 1)) {
        double least_part = tables->min_ngram_score / score * total;
        if (draft_share_out(draft, miss_weight * draft->ngram_scale, draft_context(draft, node), least_part) < 0) {
            return -1;
        }
        for (Py_ssize_t i = 0; i < draft->words.count; i++) {
            if (draft_add_word(draft, draft->words.items[i].token, draft->words.items[i].share) < 0) {
                return -1;
            }
        }
    }
    if (draft_mix(draft, node, &total) < 0) {
        return -1;
    }
    double share = -score / total;
    for (Py_ssize_t i = 0; i < draft->votes.count; i++) {
        Vote *each = &draft->votes.items[i];
        Entry entry = {each->weight * share, each->token, order, node, each->position, each->drafter, each->group};
        if (-entry.score > least && push(draft, entry) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Adds `token` to a set; one made anew, for the caller's may be of a class with a `__hash__` of its own. */
static int
offer(PyObject *offered, int64_t token)
{
    PyObject *object = PyLong_FromLongLong(token);
    int result = object == NULL ? -1 : PySet_Add(offered, object);
    Py_XDECREF(object);
    return result;
}

/* Adds the common tokens after the first `copied` votes, those of cursors. */
static int
add_common(Draft *draft, Py_ssize_t copied, PyObject *common_weights, PyObject *common, PyObject *offered)
{
    Py_ssize_t ranks = PyList_GET_SIZE(common), weighed = PyList_GET_SIZE(common_weights);
    for (Py_ssize_t rank = 0; rank < ranks; rank++) {
        int64_t token;
        double weight;
        Py_ssize_t at = copied, known = PySet_GET_SIZE(offered);
        if (get_integer(common, rank, &token) < 0 || offer(offered, token) < 0) {
            return -1;
        }
        if (PySet_GET_SIZE(offered) == known) { /* offered by a cursor, or common twice */
            at = 0;
            while (at < copied && draft->votes.items[at].token != token) {
                at++;
            }
        }
        if (token < 0 || (at == copied && PySet_GET_SIZE(offered) == known)) {
            PyErr_Format(PyExc_ValueError, "common tokens are different ids from 0; number %zd is %lld", rank,
                         (long long)token);
            return -1;
        }
        if (at == copied && rank < weighed &&
            (get_number(common_weights, rank, &weight) < 0 || draft_add_vote(draft, token, weight, NOWHERE) < 0)) {
            return -1;
        }
    }
    return 0;
}

/* Fills `roots->words` with the predictions of the n-grams. Those with a part of `weight` >= `least` become votes. */
static int
add_ngrams(Draft *draft, double weight, double least, Roots *roots)
{
    if (draft_share_out(draft, 1.0, draft->context, draft->tables->min_share) < 0) {
        return -1;
    }
    draft_sort_words(draft);
    roots->words = open_list(draft->words.count);
    if (roots->words == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < draft->words.count; i++) {
        Word word = draft->words.items[i];
        PyObject *pair = Py_BuildValue("(Ld)", (long long)word.token, word.share);
        if (pair == NULL) {
            return -1;
        }
        PyList_SET_ITEM(roots->words, i, pair);
        if (weight * word.share >= least && draft_add_word(draft, word.token, weight * word.share) < 0) {
            return -1;
        }
    }
    close_list(roots->words);
    return 0;
}

int
draft_push_roots(Draft *draft, Group group, PyObject *common_weights, PyObject *common, Roots *roots)
{
    const Tables *tables = draft->tables;
    if (draft_vote(draft, group, ROOT) < 0) {
        return -1;
    }
    Py_ssize_t copied = draft->votes.count;
    for (Py_ssize_t i = 0; i < copied; i++) {
        if (offer(roots->offered, draft->votes.items[i].token) < 0) {
            return -1;
        }
    }
    /* Common tokens are votes too, after the others, until they turn out to be too few. */
    if (add_common(draft, copied, common_weights, common, roots->offered) < 0) {
        return -1;
    }
    double miss_weight = draft->miss_at_root;
    double total = miss_weight + draft_weight(draft->votes.items, copied);
    total += draft_weight(draft->votes.items + copied, draft->votes.count - copied);
    if (draft_check_total(total) < 0) {
        return -1;
    }
    roots->hit_prob = 1.0 - miss_weight / total;
    double least = tables->min_ngram_score * total;
    for (Py_ssize_t i = copied; i < draft->votes.count; i++) {
        if (draft->votes.items[i].weight < least) { /* true of all if a cursor is sure */
            draft->votes.count = i;
        }
    }
    if (draft->contexts != NULL && miss_weight >= tables->ngram_min_miss_prob_root * total) {
        if (add_ngrams(draft, miss_weight * draft->ngram_scale, least, roots) < 0) {
            return -1;
        }
    } else {
        roots->words = PyTuple_New(0);
        if (roots->words == NULL) {
            return -1;
        }
    }
    if (draft_mix(draft, ROOT, &total) < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < draft->votes.count; i++) {
        Vote *each = &draft->votes.items[i];
        Entry entry = {-each->weight / total, each->token, 0, ROOT, each->position, each->drafter, each->group};
        if (push(draft, entry) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The least that one node more costs, by `costs` [0..]; 0 where there are none. */
static int
find_cheapest(PyObject *costs, Py_ssize_t prices, double *cheapest)
{
    double before = 0.0;
    *cheapest = 0.0;
    for (Py_ssize_t n = 0; n < prices; n++) {
        double cost;
        if (get_number(costs, n, &cost) < 0) {
            return -1;
        }
        if (!(cost > 0.0 && cost < INFINITY)) {
            return draft_wrong_number("costs are numbers above 0, got %R", cost);
        }
        if (n == 1 || (n > 1 && cost - before < *cheapest)) {
            *cheapest = cost - before;
        }
        before = cost;
    }
    return 0;
}

/* Makes `entry`, a COPY, the entry of the token at its single cursor, and moves the cursor past it. */
static int
follow_copy(Draft *draft, Entry *entry)
{
    Cursor cursor = draft->cursors.items[entry->group.first];
    double weight;
    if (get_number(draft->deeper, cursor.state, &weight) < 0 ||
        get_integer(draft->text, cursor.at, &entry->token) < 0) {
        return -1;
    }
    if (entry->token < 0) {
        PyErr_SetString(PyExc_RuntimeError, "the text changed while a draft was made of it");
        return -1;
    }
    entry->position = cursor.at;
    entry->drafter = NOBODY;
    entry->score *= weight / (weight + draft->miss_deeper);
    cursor.at++;
    cursor.state = draft->tables->following[cursor.state];
    entry->group.first = draft->cursors.count;
    return ADD(draft->cursors, cursor);
}

/* Whether the single cursor of a node is sure enough to copy on at once: 1 or 0, -1 with an exception. */
static int
is_sure_copy(const Draft *draft, Cursor cursor)
{
    double weight;
    int64_t token;
    if (cursor.at >= draft->end) {
        return 0;
    }
    if (get_number(draft->deeper, cursor.state, &weight) < 0 || get_integer(draft->text, cursor.at, &token) < 0) {
        return -1;
    }
    if (weight < draft->tables->sure_weight || token < 0) {
        return 0;
    }
    int64_t place;
    int found = draft_find_substitute(draft, cursor.at, token, &place);
    return found < 0 ? -1 : !found;
}

int
draft_grow(Draft *draft, Py_ssize_t max_nodes, PyObject *costs, double *least)
{
    const Tables *tables = draft->tables;
    Py_ssize_t prices = PySequence_Fast_GET_SIZE(costs), order = 1;
    double cheapest, expected = 1.0, child_priority = draft->has_model ? 1.0 : tables->child_priority;
    if (find_cheapest(costs, prices, &cheapest) < 0) {
        return -1;
    }
    *least = cheapest > tables->min_score ? cheapest : tables->min_score;
    while (draft->heap.count > 0 && -draft->heap.items[0].score > child_priority * *least) {
        Entry entry = pop(draft);
        if (entry.token == CHILDREN) {
            if (draft->nodes.items[entry.parent].score > *least) {
                if (push_children(draft, entry.group, entry.parent, order, *least) < 0) {
                    return -1;
                }
                order++;
            }
            continue;
        }
        int copies = entry.token == COPY;
        if (copies) {
            entry.score = -draft->nodes.items[entry.parent].score;
        }
        for (;;) { /* along a copy, until another entry of the heap is better */
            if (copies && follow_copy(draft, &entry) < 0) {
                return -1;
            }
            if (!(-entry.score > *least)) {
                break;
            }
            if (prices > 0) {
                double cost;
                if (get_number(costs, draft->nodes.count + 1, &cost) < 0) {
                    return -1;
                }
                expected -= entry.score;
                double needed = cheapest * expected / cost;
                *least = needed > *least ? needed : *least;
            }
            Py_ssize_t depth = entry.parent == ROOT ? 1 : draft->nodes.items[entry.parent].depth + 1;
            Node node = {
                entry.token, -entry.score, entry.parent, entry.position, entry.drafter, depth, entry.group,
            };
            if (ADD(draft->nodes, node) < 0) {
                return -1;
            }
            entry.parent = draft->nodes.count - 1;
            order++;
            if (draft->nodes.count == max_nodes) {
                *least = -entry.score;
                return 0;
            }
            double wait = draft->has_model || entry.drafter == NOBODY ? child_priority : tables->predicted_priority;
            Entry next = {entry.score * wait, CHILDREN, order, entry.parent, NOWHERE, NOBODY, entry.group};
            if (entry.group.count == 1 && !draft->has_model) {
                Cursor cursor = draft->cursors.items[entry.group.first];
                next.score = entry.score * tables->copy_priority;
                int sure = is_sure_copy(draft, cursor);
                if (sure < 0) {
                    return -1;
                }
                if (sure) {
                    next.token = COPY;
                    copies = 1;
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
