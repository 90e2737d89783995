/* The next tokens, by cursors. See draft.h. */

#include "draft.h"

double
draft_weight(const Vote *votes, Py_ssize_t count)
{
    Sum sum = {0.0, 0.0};
    for (Py_ssize_t i = 0; i < count; i++) {
        add_to(&sum, votes[i].weight);
    }
    return summed(sum);
}

int
draft_check_total(double total)
{
    if (total > 0.0 && total < INFINITY) {
        return 0;
    }
    return draft_wrong_number("weights add up to %R; they must be >= 0, and the miss weight > 0",
                              total);
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

int
draft_add_vote(Draft *draft, int64_t token, double weight, Py_ssize_t position)
{
    Vote vote = {weight, weight, token, position, NOBODY, {0, 0}};
    return ADD(draft->votes, vote);
}

int
draft_add_word(Draft *draft, int64_t token, double weight)
{
    Vote *vote = find_vote(draft, token);
    if (vote == NULL) {
        return draft_add_vote(draft, token, weight, NOWHERE);
    }
    vote->weight += weight;
    return 0;
}

int
draft_add_prediction(Draft *draft, int64_t token, double weight, Py_ssize_t drafter)
{
    Vote *vote = find_vote(draft, token);
    if (vote == NULL) {
        if (draft_add_vote(draft, token, weight, NOWHERE) < 0) {
            return -1;
        }
        vote = &draft->votes.items[draft->votes.count - 1];
    } else {
        vote->weight += weight;
    }
    if (vote->position == NOWHERE && vote->drafter == NOBODY) {
        vote->drafter = drafter;
    }
    return 0;
}

/* Casts the vote of one cursor; `group_cursors` puts the cursor itself into a group. */
static int
cast_vote(Draft *draft, int64_t token, double weight, Py_ssize_t position)
{
    Vote *vote = find_vote(draft, token);
    if (vote == NULL) {
        return draft_add_vote(draft, token, weight, position);
    }
    vote->weight += weight;
    if (weight > vote->heaviest) {
        vote->heaviest = weight;
        vote->position = position;
    }
    return 0;
}

int
draft_find_substitute(const Draft *draft, Py_ssize_t at, int64_t token, int64_t *place)
{
    if (PyDict_GET_SIZE(draft->substitutes) == 0 || at + 1 >= PyList_GET_SIZE(draft->kinds)) {
        return 0; /* nothing was replaced yet, or `at` is the output's */
    }
    PyObject *key = PyLong_FromLongLong(token);
    if (key == NULL) {
        return -1;
    }
    PyObject *found = Py_XNewRef(PyDict_GetItemWithError(draft->substitutes, key));
    Py_DECREF(key);
    if (found == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int result = draft_integer(found, place);
    Py_DECREF(found);
    if (result < 0) {
        return -1;
    }
    if (*place < draft->tables->columns || *place / draft->tables->columns >= draft->end) {
        PyErr_Format(PyExc_ValueError, "invalid substitute position %lld; there are %zd positions", (long long)*place,
                     draft->end);
        return -1;
    }
    return 1;
}

/* Casts a second vote of a cursor at `token`, whose vote weighs `weight`: for the substitute of `token`, if it has one.
 * Into `also`: the substitute, if the cursor is to move past it, too; else a number below 0. */
static int
vote_substitute(Draft *draft, Cursor cursor, int64_t token, double weight, Py_ssize_t node, int64_t *also)
{
    int64_t place, before;
    double factor;
    *also = -1;
    if (!draft->tables->after_substitute[cursor.state]) {
        return 0;
    }
    int found = draft_find_substitute(draft, cursor.at, token, &place);
    if (found <= 0) {
        return found;
    }
    Py_ssize_t position = (Py_ssize_t)(place / draft->tables->columns), column = place % draft->tables->columns;
    int64_t last;
    if (get_integer(draft->text, position, also) < 0 || get_integer(draft->text, position - 1, &before) < 0) {
        return -1;
    }
    if (*also < 0) {
        return 0;
    }
    if (node != ROOT) {
        last = draft->nodes.items[node].token;
    } else if (get_integer(draft->text, draft->end - 1, &last) < 0) {
        return -1;
    }
    if (get_number(draft->repeated, column + (before == last), &factor) < 0) {
        return -1;
    }
    int64_t substitute = *also;
    const Vote *known = find_vote(draft, substitute);
    if (known != NULL && !(weight * factor > known->heaviest)) {
        *also = -1; /* another cursor proposes it with more weight: this one need not move on */
    }
    return cast_vote(draft, substitute, weight * factor, position);
}

/* Adds a cursor after the last group, `moved`: 1 where that is full, -1 with an exception. */
static int
move_cursor(Draft *draft, Group *moved, Cursor cursor, int state)
{
    cursor.at++;
    cursor.state = state;
    if (ADD(draft->cursors, cursor) < 0) {
        return -1;
    }
    return ++moved->count == draft->tables->max_cursors;
}

/* Gives each vote its cursors, moved past its token and next to each other, at most `max_cursors`. `tokens`, `also`
 * [group.count]: the next token of each cursor of the group, and its substitute; below 0 if it has none. */
static int
group_cursors(Draft *draft, Group group, const int64_t *tokens, const int64_t *also)
{
    const Tables *tables = draft->tables;
    for (Py_ssize_t i = 0; i < draft->votes.count; i++) {
        const int64_t token = draft->votes.items[i].token;
        Group moved = {draft->cursors.count, 0};
        for (Py_ssize_t j = 0; j < group.count; j++) {
            const Cursor cursor = draft->cursors.items[group.first + j];
            int full = tokens[j] == token ? move_cursor(draft, &moved, cursor, tables->following[cursor.state]) : 0;
            if (full == 0 && also[j] == token) {
                full = move_cursor(draft, &moved, cursor, tables->after_substitute[cursor.state]);
            }
            if (full < 0) {
                return -1;
            }
            if (full) {
                break;
            }
        }
        draft->votes.items[i].group = moved;
    }
    return 0;
}

/* The node at `index` of `tree.path_to` of `node`; below 0 with an exception. */
static Py_ssize_t
ancestor(const Draft *draft, Py_ssize_t node, Py_ssize_t index)
{
    Py_ssize_t depth = node == ROOT ? 0 : draft->nodes.items[node].depth;
    if (index >= depth) {
        PyErr_SetString(PyExc_IndexError, "a cursor stands past what has been drafted");
        return -1;
    }
    for (; depth > index + 1; depth--) {
        node = draft->nodes.items[node].parent;
    }
    return node;
}

int
draft_vote(Draft *draft, Group group, Py_ssize_t node)
{
    const Tables *tables = draft->tables;
    PyObject *weights = node == ROOT ? draft->at_root : draft->deeper;
    int64_t few[2 * 64], *tokens = few;
    int result = -1;

    draft->votes.count = 0;
    if (group.count == 0) {
        return 0;
    }
    const Cursor *cursors = draft->cursors.items + group.first; /* no others are added before they have voted */
    if (group.count == 1 && cursors->at < draft->end) {
        int64_t token;
        double weight;
        if (get_integer(draft->text, cursors->at, &token) < 0) {
            return -1;
        }
        if (token < 0) {
            return 0;
        }
        int64_t place, none = -1;
        int found = draft_find_substitute(draft, cursors->at, token, &place);
        if (found < 0) {
            return -1;
        }
        if (!found) {
            if (get_number(weights, cursors->state, &weight) < 0 ||
                draft_add_vote(draft, token, weight, cursors->at) < 0) {
                return -1;
            }
            return group_cursors(draft, group, &token, &none);
        }
    }
    /* How many have each length of match, and the column of the crowd table that this makes. */
    Py_ssize_t counts[MATCH_LENGTHS] = {0};
    int columns[MATCH_LENGTHS] = {0}, longest = 0;
    for (Py_ssize_t i = 0; i < group.count; i++) {
        int length = tables->length[cursors[i].state];
        counts[length]++;
        longest = length > longest ? length : longest;
    }
    for (int length = 0; length <= longest && group.count > 1; length++) {
        int gap = longest - length;
        int company = counts[length] < tables->companies ? (int)counts[length] : tables->companies - 1;
        columns[length] = tables->company[company] + (gap < tables->gaps ? gap : tables->gaps - 1);
    }
    if (group.count > 64) {
        tokens = PyMem_New(int64_t, 2 * group.count);
        if (tokens == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    int64_t *also = tokens + group.count;
    for (Py_ssize_t i = 0; i < group.count; i++) {
        also[i] = -1;
        Cursor cursor = cursors[i];
        Py_ssize_t position = cursor.at;
        if (cursor.at < draft->end) {
            if (get_integer(draft->text, cursor.at, &tokens[i]) < 0) {
                goto done;
            }
        } else {
            Py_ssize_t drafted = ancestor(draft, node, cursor.at - draft->end);
            if (drafted < 0) {
                goto done;
            }
            tokens[i] = draft->nodes.items[drafted].token;
            position = draft->nodes.items[drafted].position;
        }
        if (tokens[i] < 0) {
            continue;
        }
        double weight, crowd;
        int entry = tables->crowd_row[cursor.state] + columns[tables->length[cursor.state]];
        if (get_number(weights, cursor.state, &weight) < 0 || get_number(draft->crowds, entry, &crowd) < 0 ||
            cast_vote(draft, tokens[i], weight * crowd, position) < 0 ||
            vote_substitute(draft, cursor, tokens[i], weight * crowd, node, &also[i]) < 0) {
            goto done;
        }
    }
    result = group_cursors(draft, group, tokens, also);
done:
    if (tokens != few) {
        PyMem_Free(tokens);
    }
    return result;
}

/* A cursor at `position`, unless it is one of the group `without`. `kinds`: of the positions; NULL: it is the output's.
 */
static int
add_place(Draft *draft, int64_t position, PyObject *kinds, Group without)
{
    if (position == draft->end) { /* no token follows it yet */
        return 0;
    }
    for (Py_ssize_t i = 0; i < without.count; i++) {
        if (draft->cursors.items[without.first + i].at == position) {
            return 0;
        }
    }
    if (position < 0 || position > draft->end) {
        PyErr_Format(PyExc_ValueError, "position %lld is none of the text, which has %zd", (long long)position,
                     draft->end);
        return -1;
    }
    int64_t kind = draft->tables->written;
    if (kinds != NULL && get_integer(kinds, (Py_ssize_t)position, &kind) < 0) {
        return -1;
    }
    if (kind < 0 || kind >= KINDS) {
        PyErr_Format(PyExc_ValueError, "position %lld of the text is of kind %lld; from 0 to %d are known",
                     (long long)position, (long long)kind, KINDS - 1);
        return -1;
    }
    Cursor cursor = {(Py_ssize_t)position, draft->tables->joined[kind]};
    return ADD(draft->cursors, cursor);
}

/* The last positions after `token` in `index`, a dictionary of lists, as cursors after the last group. */
static int
add_places(Draft *draft, PyObject *index, PyObject *kinds, int64_t token, Group without)
{
    const Tables *tables = draft->tables;
    PyObject *key = PyLong_FromLongLong(token);
    if (key == NULL) {
        return -1;
    }
    PyObject *places = Py_XNewRef(PyDict_GetItemWithError(index, key));
    Py_DECREF(key);
    if (places == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int result = -1;
    if (!PyList_Check(places)) {
        PyErr_Format(PyExc_TypeError, "the places of token %lld are a list, got %R", (long long)token, places);
        goto done;
    }
    Py_ssize_t count = PyList_GET_SIZE(places);
    for (Py_ssize_t i = count > tables->max_joining ? count - tables->max_joining : 0; i < count; i++) {
        int64_t position;
        if (get_integer(places, i, &position) < 0 || add_place(draft, position, kinds, without) < 0) {
            goto done;
        }
    }
    result = 0;
done:
    Py_DECREF(places);
    return result;
}

/* Where the other way of the fork starts that `cursor` stands at; below 0 where it stands at none, ERROR with an
 * exception. */
#define ERROR PY_SSIZE_T_MIN
static Py_ssize_t
other_way(const Draft *draft, Cursor cursor)
{
    int64_t token;
    if (cursor.at >= draft->end) {
        return -1;
    }
    if (get_integer(draft->text, cursor.at, &token) < 0) {
        return ERROR;
    }
    if (token >= FORK) {
        return -1;
    }
    if (token <= -draft->end || cursor.at + 1 >= draft->end) {
        PyErr_Format(PyExc_ValueError, "the fork at %zd leads to %lld; the text has %zd positions", cursor.at,
                     (long long)token, draft->end);
        return ERROR;
    }
    return (Py_ssize_t)-token;
}

int
draft_fork(Draft *draft, Group *group)
{
    Py_ssize_t first = 0;
    for (; first < group->count; first++) {
        Py_ssize_t way = other_way(draft, draft->cursors.items[group->first + first]);
        if (way == ERROR) {
            return -1;
        }
        if (way >= 0) {
            break;
        }
    }
    if (first == group->count) {
        return 0;
    }
    Group forked = {draft->cursors.count, 0};
    for (Py_ssize_t i = 0; i < group->count; i++) {
        Cursor cursor = draft->cursors.items[group->first + i];
        Py_ssize_t way = i < first ? -1 : other_way(draft, cursor);
        if (way == ERROR) {
            return -1;
        }
        Cursor other = {way, cursor.state};
        cursor.at += way >= 0;
        if (ADD(draft->cursors, cursor) < 0 || (way >= 0 && ADD(draft->cursors, other) < 0)) {
            return -1;
        }
    }
    forked.count = draft->cursors.count - forked.first;
    *group = forked;
    return 0;
}

int
draft_join(Draft *draft, int64_t token, Group *group)
{
    Group joined = {draft->cursors.count, group->count};
    for (Py_ssize_t i = 0; i < group->count; i++) {
        Cursor cursor = draft->cursors.items[group->first + i];
        if (ADD(draft->cursors, cursor) < 0) {
            return -1;
        }
    }
    if (add_places(draft, draft->places, draft->kinds, token, *group) < 0 ||
        add_places(draft, draft->written, NULL, token, *group) < 0) {
        return -1;
    }
    joined.count = draft->cursors.count - joined.first;
    *group = joined;
    return 0;
}
