-------------------------- MODULE PrefixCacheModels --------------------------
(* The configurations of the cache's models; a model file (.cfg) names the set it draws from. *)
EXTENDS PrefixCache

base == [page_size |-> 1, num_pages |-> 3, num_handles |-> 2, cache |-> "radix",
         prompts |-> {<<1>>, <<1, 1>>, <<1, 2>>}, evictions |-> {1, 2}]

in_pairs == [base EXCEPT !.page_size = 2, !.prompts = {<<1, 1, 1, 1>>, <<1, 1, 1, 2, 1>>}, !.evictions = {3}]

small == {base, in_pairs, [base EXCEPT !.cache = "naive"]}

(* Four pages and three handles. *)
wide == {[base EXCEPT !.num_pages = 4, !.num_handles = 3, !.prompts = @ \union {<<2>>}]}
=============================================================================
