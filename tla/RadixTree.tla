------------------------------ MODULE RadixTree ------------------------------
(* The radix tree as a value, and its operations as functions: what PrefixCache and Scheduler share.

   A tree is [nodes, evictable_size, protected_size]. `nodes` lists every node but the root in order of
   eviction: what was touched last comes last, and of one walk a child before its parent. This order is
   all that minisgl_spec's last_used and node numbers decide, without a counter that grows for ever.

   A node is [path, start, pages, ref_count]: the tokens from the root to its end, how many of them are
   above it (both in tokens), its own pages in order of position, and the locked handles at or below it.
   A handle is the path it covers. ref_count and the two sizes are kept up to date here, as an engine
   keeps them; the invariants recompute them.

   `mistake` names the one guard that a model leaves out; "none" in every model that must pass.
   Chapter: spec/02-radix-tree.md, spec/03-locks-and-eviction.md *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANT mistake

take(s, n) == SubSeq(s, 1, n)
drop(s, n) == SubSeq(s, n + 1, Len(s))
range_of(s) == {s[i] : i \in 1..Len(s)}
min(a, b) == IF a < b THEN a ELSE b
max(a, b) == IF a > b THEN a ELSE b
div_ceil(length, size) == (length + size - 1) \div size
align_down(length, size) == length - (length % size)
align_up(length, size) == div_ceil(length, size) * size

RECURSIVE flatten(_)
flatten(s) == IF s = << >> THEN << >> ELSE Head(s) \o flatten(Tail(s))

RECURSIVE sum(_)
sum(s) == IF s = << >> THEN 0 ELSE Head(s) + sum(Tail(s))

is_prefix(a, b) == Len(a) <= Len(b) /\ SubSeq(b, 1, Len(a)) = a

common_len(a, b) ==
    LET n == min(Len(a), Len(b))
        differs == {i \in 1..n : a[i] # b[i]}
    IN  IF differs = {} THEN n ELSE (CHOOSE i \in differs : \A j \in differs : i <= j) - 1

max_of(numbers) == CHOOSE n \in numbers : \A m \in numbers : m <= n
min_of(numbers) == CHOOSE n \in numbers : \A m \in numbers : m >= n

empty_tree == [nodes |-> << >>, evictable_size |-> 0, protected_size |-> 0]

\* -- what is there --------------------------------------------------------------------------

(* The longest cached whole-page prefix of ids, in tokens. *)
longest(nodes, ids, page_size) ==
    LET aligned(length) == IF mistake = "match_parts_of_pages" THEN length ELSE align_down(length, page_size)
    IN  max_of({0} \union {aligned(common_len(nodes[i].path, ids)) : i \in 1..Len(nodes)})

is_leaf(nodes, node) ==
    \A i \in 1..Len(nodes) : ~(is_prefix(node.path, nodes[i].path) /\ node.path # nodes[i].path)

has_node(tree, path) == path = << >> \/ \E i \in 1..Len(tree.nodes) : tree.nodes[i].path = path

(* The pages of a cached path, in order of position; of a path that is gone, what is left of it. *)
pages_of(tree, path) ==
    LET on_path == SelectSeq(tree.nodes, LAMBDA node : is_prefix(node.path, path))
        reversed == [i \in 1..Len(on_path) |-> on_path[Len(on_path) + 1 - i].pages]
    IN  flatten(reversed)

\* -- operations ------------------------------------------------------------------------------

(* RadixTree._walk and _split: follow ids down, touch what is met, split a node that matches in part.
   `leaf` is the sequence of nodes (none, or one) that an insertion hangs below the end of the walk. *)
walk(tree, ids, page_size, leaf) ==
    LET nodes == tree.nodes
        prefix_len == longest(nodes, ids, page_size)
        found == take(ids, prefix_len)
        ends == {i \in 1..Len(nodes) : nodes[i].start < prefix_len /\ is_prefix(found, nodes[i].path)}
        is_split == ends # {} /\ \A i \in ends : Len(nodes[i].path) > prefix_len
        node == nodes[CHOOSE i \in ends : TRUE]
        num_upper == (prefix_len - node.start) \div page_size
        upper == [path |-> found, start |-> node.start, pages |-> take(node.pages, num_upper),
                  ref_count |-> IF mistake = "split_forgets_ref_count" THEN 0 ELSE node.ref_count]
        lower == [node EXCEPT !.start = prefix_len, !.pages = drop(node.pages, num_upper)]
        others == SelectSeq(nodes, LAMBDA n : ~is_prefix(n.path, found) /\ ~(is_split /\ n = node))
        chain == SelectSeq(nodes, LAMBDA n : is_prefix(n.path, found))
        halves == IF is_split THEN <<lower>> ELSE << >>
        new_nodes == others \o halves \o leaf \o (IF is_split THEN <<upper>> ELSE << >>) \o chain
    IN  [tree EXCEPT !.nodes = new_nodes]

(* RadixTree.match_prefix *)
match_prefix(tree, ids, page_size) ==
    [tree |-> walk(tree, ids, page_size, << >>), prefix_len |-> longest(tree.nodes, ids, page_size)]

(* RadixTree.insert_prefix; pages cover ids, the last of them perhaps in part. *)
insert_prefix(tree, ids, pages, page_size) ==
    LET new_len == IF mistake = "insert_parts_of_pages" THEN Len(ids) ELSE align_down(Len(ids), page_size)
        new_ids == take(ids, new_len)
        found == longest(tree.nodes, new_ids, page_size)
        own == SubSeq(pages, found \div page_size + 1, div_ceil(new_len, page_size))
        leaf == [path |-> new_ids, start |-> found, pages |-> own, ref_count |-> 0]
        is_new == IF mistake = "insert_adds_what_is_there" THEN new_len > 0 ELSE found < new_len
        walked == walk(tree, new_ids, page_size, IF is_new THEN <<leaf>> ELSE << >>)
    IN  [tree |-> [walked EXCEPT !.evictable_size = @ + (IF is_new THEN Len(own) * page_size ELSE 0)],
         prefix_len |-> found, new_len |-> new_len]

(* The slots of the path's nodes that have exactly this ref_count. *)
size_at(tree, path, ref_count, page_size) ==
    LET at == SelectSeq(tree.nodes, LAMBDA n : is_prefix(n.path, path) /\ n.ref_count = ref_count)
    IN  page_size * sum([i \in 1..Len(at) |-> Len(at[i].pages)])

count_path(tree, path, change) ==
    [i \in 1..Len(tree.nodes) |->
        IF is_prefix(tree.nodes[i].path, path) THEN [tree.nodes[i] EXCEPT !.ref_count = @ + change]
                                               ELSE tree.nodes[i]]

(* RadixTree.lock *)
lock(tree, path, page_size) ==
    LET moved == IF mistake = "lock_forgets_sizes" THEN 0 ELSE size_at(tree, path, 0, page_size)
    IN  [nodes |-> count_path(tree, path, 1), evictable_size |-> tree.evictable_size - moved,
         protected_size |-> tree.protected_size + moved]

(* RadixTree.unlock *)
unlock(tree, path, page_size) ==
    LET moved == size_at(tree, path, 1, page_size)
    IN  [nodes |-> count_path(tree, path, -1), evictable_size |-> tree.evictable_size + moved,
         protected_size |-> tree.protected_size - moved]

(* RadixTree.evict: whole leaves until `count` pages are out; fewer only if none is evictable. A node's
   children come before it and are locked only if it is, so the first node without a lock is a leaf. *)
RECURSIVE evict_leaves(_, _, _, _)
evict_leaves(tree, count, page_size, evicted) ==
    LET nodes == tree.nodes
        victims == {i \in 1..Len(nodes) : mistake # "evict_ignores_locks" => nodes[i].ref_count = 0}
        victim == IF mistake = "evict_newest" THEN max_of(victims) ELSE min_of(victims)
        pages == nodes[victim].pages
        rest == [nodes |-> take(nodes, victim - 1) \o drop(nodes, victim),
                 evictable_size |-> tree.evictable_size - Len(pages) * page_size,
                 protected_size |-> tree.protected_size]
    IN  IF Len(evicted) >= count \/ victims = {}
        THEN [tree |-> tree, pages |-> evicted]
        ELSE evict_leaves(rest, count, page_size, evicted \o pages)

\* -- invariants of a tree --------------------------------------------------------------------
\* `handles` is the sequence of the paths that locked handles cover.

is_keys_page_aligned(tree, page_size) ==
    \A i \in 1..Len(tree.nodes) :
        LET node == tree.nodes[i]
        IN  /\ Len(node.path) - node.start = Len(node.pages) * page_size
            /\ node.pages # << >>

is_siblings_differ_in_first_page(tree, page_size) ==
    \A i, j \in 1..Len(tree.nodes) :
        LET a == tree.nodes[i]
            b == tree.nodes[j]
        IN  i # j /\ a.start = b.start =>
                take(a.path, min(Len(a.path), a.start + page_size)) # take(b.path, min(Len(b.path), b.start + page_size))

num_at_or_below(handles, path) == Cardinality({i \in 1..Len(handles) : is_prefix(path, handles[i])})

is_ref_count_counts_handles(tree, handles) ==
    \A i \in 1..Len(tree.nodes) : tree.nodes[i].ref_count = num_at_or_below(handles, tree.nodes[i].path)

is_locked_nodes_in_tree(tree, handles, page_size) ==
    \A i \in 1..Len(handles) :
        /\ has_node(tree, handles[i])
        /\ Len(pages_of(tree, handles[i])) * page_size = Len(handles[i])

is_sizes_match_locks(tree, page_size) ==
    LET free_of_locks == SelectSeq(tree.nodes, LAMBDA n : n.ref_count = 0)
        locked == SelectSeq(tree.nodes, LAMBDA n : n.ref_count # 0)
        size(nodes) == page_size * sum([i \in 1..Len(nodes) |-> Len(nodes[i].pages)])
    IN  tree.evictable_size = size(free_of_locks) /\ tree.protected_size = size(locked)

cached_pages(tree) == flatten([i \in 1..Len(tree.nodes) |-> tree.nodes[i].pages])

is_slots_cached_once(tree) ==
    LET pages == cached_pages(tree) IN Cardinality(range_of(pages)) = Len(pages)

(* Every cached whole-page prefix with the page of its end. *)
cached_pairs(tree, page_size) ==
    UNION {{<<take(tree.nodes[i].path, tree.nodes[i].start + k * page_size), tree.nodes[i].pages[k]>> :
            k \in 1..Len(tree.nodes[i].pages)} : i \in 1..Len(tree.nodes)}

\* -- contracts of a tree ---------------------------------------------------------------------

(* Each evicted leaf is the first evictable one at its turn, by the locked handles, not by ref_count. *)
RECURSIVE is_oldest_leaf_first(_, _, _)
is_oldest_leaf_first(nodes, handles, pages) ==
    LET evictable == {i \in 1..Len(nodes) :
                        is_leaf(nodes, nodes[i]) /\ num_at_or_below(handles, nodes[i].path) = 0}
        victim == min_of(evictable)
    IN  \/ pages = << >>
        \/ /\ evictable # {}
           /\ is_prefix(nodes[victim].pages, pages)
           /\ is_oldest_leaf_first(take(nodes, victim - 1) \o drop(nodes, victim), handles,
                                   drop(pages, Len(nodes[victim].pages)))
=============================================================================
