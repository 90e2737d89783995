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
    Sum weight = {0.0, 0.0};
    for (Py_ssize_t i = 0; i < group.count; i++) {
        add_to(&weight, number(draft->deeper, draft->cursors.items[group.first + i].state));
    }
    int sure = weight.sum + weight.lost >= tables->sure;
    if (!sure && draft_join(draft, draft->token[node], &group) < 0) {
        return -1;
    }
    if (draft->group[node].count > 0) { /* a node after which none stands keeps none */
        draft->group[node] = group;
    }
    if (draft_vote(draft, group, node) < 0) {
        return -1;
    }
    double none = draft->none_deeper, score = draft->score[node];
    double total = none + draft_weight(draft->votes.items, draft->votes.count);
    if (draft->contexts != NULL && none * score >= tables->open_deeper * total && !(sure && group.count == 1)) {
        double least_part = tables->fewest / score * total;
        if (draft_share_out(draft, none * draft->language, draft_context(draft, node), least_part) < 0) {
            return -1;
        }
        for (Py_ssize_t i = 0; i < draft->words.count; i++) {
            if (draft_add_word(draft, draft->words.items[i].token, draft->words.items[i].share) < 0) {
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

int
draft_push_roots(Draft *draft, Group group, PyObject *common_weights, PyObject *common, Roots *roots)
{
    const Tables *tables = draft->tables;
    if (draft_vote(draft, group, ROOT) < 0) {
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
            draft_add_vote(draft, token, number(common_weights, rank), NOWHERE) < 0) {
            return -1;
        }
    }
    double none = draft->none_at_root;
    double total = none + draft_weight(draft->votes.items, said);
    total += draft_weight(draft->votes.items + said, draft->votes.count - said);
    roots->covered = 1.0 - none / total;
    double least = tables->fewest * total;
    for (Py_ssize_t i = said; i < draft->votes.count; i++) {
        if (draft->votes.items[i].weight < least) { /* beside a sure copy all are */
            draft->votes.count = i;
        }
    }
    if (draft->contexts != NULL && none >= tables->open_root * total) {
        double weight = none * draft->language;
        if (draft_share_out(draft, 1.0, draft->context, tables->least_share) < 0) {
            return -1;
        }
        draft_sort_words(draft);
        roots->words = PyList_New(draft->words.count);
        for (Py_ssize_t i = 0; roots->words != NULL && i < draft->words.count; i++) {
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

int
draft_grow(Draft *draft, Py_ssize_t max_nodes, PyObject *costs)
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
