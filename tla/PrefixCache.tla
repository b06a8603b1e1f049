----------------------------- MODULE PrefixCache -----------------------------
(* A prefix cache under a caller that matches, inserts, locks, unlocks, evicts and resets as it likes,
   mistakes included: they are refused and change nothing.

   The caller owns the pages that are not cached, all of them in its free list between two operations:
   an insertion takes fresh pages, what was cached already and the tail come back (the runner of
   minisgl_conformance does the same, so every behaviour is a program of level `cache`).

   Left out: what the slots hold (Scheduler has it), the order of a node's children, slots below a page.
   Chapter: spec/02-radix-tree.md, spec/03-locks-and-eviction.md *)
EXTENDS RadixTree

VARIABLES
    config,     \* [page_size (slots), num_pages, num_handles, cache, prompts, evictions (sizes)]: set in Init, then constant
    tree,       \* the radix tree, see RadixTree
    free_pages, \* pages, the next one handed out first
    handles,    \* [1..num_handles]: [path (tokens), is_locked, is_stale], or no_handle
    event       \* the last operation and its answer; nothing depends on it

vars == <<config, tree, free_pages, handles, event>>
all_but_event == <<config, tree, free_pages, handles>>

CONSTANT configurations  \* the set that Init draws from; each model file names its own

MATCH == 1
INSERT == 2
LOCK == 3
UNLOCK == 4
EVICT == 5
RESET == 6

no_handle == [path |-> <<-1>>, is_locked |-> FALSE, is_stale |-> TRUE]
handle_on(path) == [path |-> path, is_locked |-> FALSE, is_stale |-> FALSE]

size == config.page_size
is_naive == config.cache = "naive"
locked_paths ==
    LET locked == SelectSeq([i \in 1..Len(handles) |-> handles[i]], LAMBDA h : h.is_locked)
    IN  [i \in 1..Len(locked) |-> locked[i].path]

\* -- operations ------------------------------------------------------------------------------

(* RadixTree.match_prefix; the handle replaces one that is not locked. *)
match(ids, h) ==
    LET found == match_prefix(tree, ids, size)
        path == take(ids, found.prefix_len)
    IN  /\ ~handles[h].is_locked
        /\ tree' = found.tree
        /\ handles' = [handles EXCEPT ![h] = handle_on(path)]
        /\ event' = <<MATCH, ids, h, found.prefix_len, pages_of(found.tree, path)>>
        /\ UNCHANGED <<config, free_pages>>

(* RadixTree.insert_prefix; the pages of handle `own`'s prefix, if it is locked and fits, else fresh ones. *)
insert(ids, own, h) ==
    LET lends == own # 0 /\ handles[own].is_locked /\ is_prefix(handles[own].path, ids)
        own_pages == IF lends THEN pages_of(tree, handles[own].path) ELSE << >>
        num_fresh == div_ceil(Len(ids), size) - Len(own_pages)
        pages == own_pages \o take(free_pages, num_fresh)
        result == insert_prefix(tree, ids, pages, size)
        duplicates == SubSeq(pages, Len(own_pages) + 1, result.prefix_len \div size)
        tail == drop(pages, result.new_len \div size)
        fresh_back == IF mistake = "insert_keeps_duplicates" THEN tail ELSE duplicates \o tail
    IN  /\ ~handles[h].is_locked
        /\ own # 0 => handles[own].is_locked
        /\ num_fresh <= Len(free_pages)
        /\ tree' = IF is_naive THEN tree ELSE result.tree
        /\ free_pages' = drop(free_pages, num_fresh)
                         \o (IF is_naive THEN take(free_pages, num_fresh) ELSE fresh_back)
        /\ handles' = [handles EXCEPT ![h] = handle_on(IF is_naive THEN << >> ELSE take(ids, result.new_len))]
        /\ event' = <<INSERT, ids, own, h, IF is_naive THEN 0 ELSE result.prefix_len, pages>>
        /\ UNCHANGED config

(* RadixTree.lock: refused if the handle is locked or its node is gone. *)
lock_handle(h) ==
    LET handle == handles[h]
        is_refused == \/ handle.is_locked /\ mistake # "lock_twice"
                      \/ handle.is_stale /\ mistake # "lock_what_is_gone"
    IN  /\ handle # no_handle
        /\ tree' = IF is_refused THEN tree ELSE lock(tree, handle.path, size)
        /\ handles' = IF is_refused THEN handles ELSE [handles EXCEPT ![h].is_locked = TRUE]
        /\ event' = <<LOCK, h, IF is_refused THEN 0 ELSE 1>>
        /\ UNCHANGED <<config, free_pages>>

(* RadixTree.unlock: refused if the handle is not locked. *)
unlock_handle(h) ==
    LET handle == handles[h]
        is_refused == ~handle.is_locked /\ mistake # "unlock_twice"
    IN  /\ handle # no_handle
        /\ tree' = IF is_refused THEN tree ELSE unlock(tree, handle.path, size)
        /\ handles' = IF is_refused THEN handles ELSE [handles EXCEPT ![h].is_locked = FALSE]
        /\ event' = <<UNLOCK, h, IF is_refused THEN 0 ELSE 1>>
        /\ UNCHANGED <<config, free_pages>>

gone(handle, new_tree) == handle.is_stale \/ ~has_node(new_tree, handle.path)

(* RadixTree.evict: refused if more is asked than is evictable. *)
evict(asked) ==
    LET is_refused == asked > tree.evictable_size /\ mistake # "evict_too_much"
        result == evict_leaves(tree, div_ceil(asked, size), size, << >>)
    IN  /\ tree' = IF is_refused THEN tree ELSE result.tree
        /\ free_pages' = IF is_refused THEN free_pages ELSE free_pages \o result.pages
        /\ handles' = IF is_refused THEN handles
                      ELSE [h \in DOMAIN handles |->
                            [handles[h] EXCEPT !.is_stale = gone(handles[h], result.tree)]]
        /\ event' = IF is_refused THEN <<EVICT, asked, 0, << >> >> ELSE <<EVICT, asked, 1, result.pages>>
        /\ UNCHANGED config

(* RadixTree.reset: refused while a handle is locked. *)
reset ==
    LET is_refused == (\E h \in DOMAIN handles : handles[h].is_locked) /\ mistake # "reset_while_locked"
        sorted == SelectSeq([p \in 1..config.num_pages |-> p - 1], LAMBDA p : p \in range_of(cached_pages(tree)))
    IN  /\ tree' = IF is_refused THEN tree ELSE empty_tree
        /\ free_pages' = IF is_refused THEN free_pages ELSE free_pages \o sorted
        /\ handles' = IF is_refused THEN handles
                      ELSE [h \in DOMAIN handles |->
                            [handles[h] EXCEPT !.is_stale = gone(handles[h], empty_tree)]]
        /\ event' = <<RESET, IF is_refused THEN 0 ELSE 1>>
        /\ UNCHANGED config

\* -- behaviours ------------------------------------------------------------------------------

Init ==
    /\ config \in configurations
    /\ tree = empty_tree
    /\ free_pages = [i \in 1..config.num_pages |-> i - 1]
    /\ handles = [h \in 1..config.num_handles |-> no_handle]
    /\ event = << >>

Next ==
    \/ \E ids \in config.prompts, h \in DOMAIN handles : match(ids, h)
    \/ \E ids \in config.prompts, own \in {0} \union DOMAIN handles, h \in DOMAIN handles : insert(ids, own, h)
    \/ \E h \in DOMAIN handles : lock_handle(h)
    \/ \E h \in DOMAIN handles : unlock_handle(h)
    \/ \E asked \in config.evictions : evict(asked)
    \/ reset

Spec == Init /\ [][Next]_vars

\* -- invariants ------------------------------------------------------------------------------

(* The shapes of the variables. *)
TypeOK ==
    /\ \A i \in 1..Len(free_pages) : free_pages[i] \in 0..(config.num_pages - 1)
    /\ \A i \in 1..Len(tree.nodes) : range_of(tree.nodes[i].pages) \subseteq 0..(config.num_pages - 1)
    /\ \A h \in DOMAIN handles : handles[h].is_locked \in BOOLEAN /\ handles[h].is_stale \in BOOLEAN

(* Every node but the root holds a positive whole number of pages. *)
keys_page_aligned == is_keys_page_aligned(tree, size)

(* Two children of one node never begin with the same page of tokens. *)
siblings_differ_in_first_page == is_siblings_differ_in_first_page(tree, size)

(* A node's ref_count is the number of locked handles at or below it. *)
ref_count_counts_handles == is_ref_count_counts_handles(tree, locked_paths)

(* The node of every locked handle is in the tree, and its path is as long as the handle says. *)
locked_nodes_in_tree == is_locked_nodes_in_tree(tree, locked_paths, size)

(* evictable_size and protected_size are the slots under ref_count 0 and above 0. *)
sizes_match_locks == is_sizes_match_locks(tree, size)

(* No slot is cached by two nodes, or twice by one. *)
slots_cached_once == is_slots_cached_once(tree)

(* Every page is free, cached by one node, private to one request, or retired: exactly one of these. *)
pages_partitioned ==
    LET owned == free_pages \o cached_pages(tree)
    IN  Len(owned) = config.num_pages /\ range_of(owned) = 0..(config.num_pages - 1)

\* -- contracts: of every step ----------------------------------------------------------------

is_event(kind) == event' # << >> /\ event'[1] = kind

(* match_prefix returns the longest cached whole-page prefix. *)
match_is_longest ==
    [][is_event(MATCH) =>
        LET ids == event'[2]
            cached == {pair[1] : pair \in cached_pairs(tree, size)}
        IN  /\ event'[4] = 0 \/ take(ids, event'[4]) \in cached
            /\ \A length \in (event'[4] + 1)..Len(ids) : take(ids, length) \notin cached]_vars

(* match_prefix returns the slots that were inserted for the prefix, in order of position. *)
match_returns_cached_slots ==
    [][is_event(MATCH) =>
        \A k \in 1..(event'[4] \div size) :
            <<take(event'[2], k * size), event'[5][k]>> \in cached_pairs(tree, size)]_vars

(* match_prefix may split nodes but leaves the cached pairs of prefix and slot as they were. *)
match_preserves_contents ==
    [][is_event(MATCH) => cached_pairs(tree', size) = cached_pairs(tree, size)]_vars

(* insert_prefix says how many tokens were cached before, and its handle covers all whole pages. *)
insert_reports_prefix ==
    [][is_event(INSERT) /\ ~is_naive =>
        /\ event'[5] = longest(tree.nodes, event'[2], size)
        /\ Len(handles'[event'[4]].path) = align_down(Len(event'[2]), size)]_vars

(* evict(size) returns at least size slots, all from nodes with ref_count 0. *)
evict_frees_enough ==
    [][is_event(EVICT) /\ event'[3] = 1 =>
        LET protected == UNION {range_of(tree.nodes[i].pages) : i \in {j \in 1..Len(tree.nodes) :
                                    num_at_or_below(locked_paths, tree.nodes[j].path) > 0}}
        IN  Len(event'[4]) * size >= event'[2] /\ range_of(event'[4]) \intersect protected = {}]_vars

(* What evict leaves behind is prefix-closed: no page stays cached behind one that is gone. *)
evict_leaves_first ==
    [][is_event(EVICT) =>
        LET cached == {pair[1] : pair \in cached_pairs(tree', size)}
        IN  \A path \in cached : Len(path) > size => take(path, Len(path) - size) \in cached]_vars

(* Each evicted leaf is the least recently used evictable leaf at its turn. *)
evict_takes_oldest_leaf ==
    [][is_event(EVICT) => is_oldest_leaf_first(tree.nodes, locked_paths, event'[4])]_vars

(* A call is refused when its contract forbids it, and only then. *)
mistakes_are_refused ==
    [][LET answer == event'[3]
           handle == handles[event'[2]]
       IN  CASE is_event(LOCK) -> (answer = 0) = (handle.is_locked \/ ~has_node(tree, handle.path) \/ handle.is_stale)
             [] is_event(UNLOCK) -> (answer = 0) = ~handle.is_locked
             [] is_event(EVICT) -> (answer = 0) = (event'[2] > tree.evictable_size)
             [] is_event(RESET) -> (event'[2] = 0) = (locked_paths # << >>)
             [] OTHER -> TRUE]_vars

(* A call that raises ContractError, or refuses a request, leaves the state as it was. *)
refusal_changes_nothing ==
    [][((is_event(LOCK) \/ is_event(UNLOCK) \/ is_event(EVICT)) /\ event'[3] = 0)
        \/ (is_event(RESET) /\ event'[2] = 0)
       => UNCHANGED all_but_event]_vars
=============================================================================
