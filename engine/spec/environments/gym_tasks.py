"""The tasks of reasoning-gym, and the parameters of each that a spec can set: the texts and numbers of its config.

The table is written by `python -m tests.engine.spec.environments.gym_table` from the installed release, since the
control plane does not import the library. A task without such parameters has none after the colon.
"""

from collections.abc import Mapping
from typing import Final

TABLE: Final = """\
ab: length
acre: train
advanced_geometry: max_coord min_coord
aiw: max_entities
arc_1d: max_size min_size num_train
arc_agi: shuffle_example_order use_color_permutation use_eval use_train
base_conversion: max_base max_value min_base min_value
basic_arithmetic: allow_negation allow_parentheses format_style max_digits max_terms min_digits min_terms whitespace
bf: difficulty
binary_alternation: max_n min_n p_solvable
binary_matrix: max_n min_n p_zero
bitwise_arithmetic: difficulty
boxnet: max_box_num max_column_num max_row_num min_box_num min_column_num min_row_num
caesar_cipher: delimiter max_rotation max_words min_rotation min_words
calendar_arithmetic: leap_year_range offset_upper_bound year
chain_sum: allow_negation max_digits max_terms min_digits min_terms
circuit_logic: allow_reuse max_inputs max_terms min_inputs min_terms neg_prob
codeio: difficulty input_prediction_probability
coin_flip: allow_at_least allow_exact max_trials min_trials
color_cube_rotation: max_rotations min_rotations
complex_arithmetic: max_imag max_real min_imag min_real
count_bits: max_n min_n
count_primes: max_n min_n
countdown: max_numbers max_target max_value min_numbers min_target min_value shuffle
course_schedule: max_cycle_length max_num_courses max_num_prerequisites min_cycle_length min_num_courses
  min_num_prerequisites p_solvable
cryptarithm: allow_leading_zero max_words min_words
decimal_arithmetic: max_num_decimal_places max_terms min_num_decimal_places min_terms precision
decimal_chain_sum: allow_negation max_decimal_places max_digits max_terms min_decimal_places min_digits min_terms
dice: max_dice_size num_dice
emoji_mystery: max_words_in_sentence min_words_in_sentence
family_relationships: max_family_size min_family_size
figlet_font: max_word_len min_word_len space_letters static_font static_word
fraction_simplification: max_factor max_value min_factor min_value
futoshiki: max_board_size max_difficulty min_board_size min_difficulty
game_of_life: filled_cells filled_cells_weights grid_size_x grid_size_y simulation_steps
game_of_life_halting: difficulty grid_size_x grid_size_y max_simulation_steps num_oscillators
gcd: max_numbers max_value min_numbers min_value
graph_color: edge_probability max_num_vertices min_num_vertices num_colors
group_anagrams: max_anagram_groups max_words_per_group min_anagram_groups min_words_per_group
gsm_symbolic: difficulty
intermediate_integration: linear_lower_bound linear_upper_bound max_linear_degree max_poly_degree min_linear_degree
  min_poly_degree outer_constant_max outer_constant_min
isomorphic_strings: max_string_length min_string_length p_solvable
jugs: difficulty num_jugs
kakurasu: max_cols max_retries max_rows min_cols min_rows p_ones
knight_swap: impossible_ratio max_attempts max_nodes max_pieces max_steps min_nodes min_pieces min_steps
knights_knaves: depth_constraint n_people width_constraint
largest_island: max_cols max_island_size max_num_islands max_rows min_cols min_island_size min_num_islands min_rows
lcm: max_numbers max_value min_numbers min_value
leg_counting: max_animals max_instances min_animals min_instances
letter_counting: max_words min_words
letter_jumble: consecutive_words max_corruption_level max_word_len max_words min_corruption_level min_word_len
  min_words
list_functions:
mahjong_puzzle: max_num_rounds min_num_rounds
manipulate_matrix: max_cols max_rows max_transforms min_cols min_rows min_transforms w_cmirror w_crop w_dmirror
  w_hmirror w_map w_remove_every_nth_col w_remove_every_nth_row w_rotate w_vmirror w_zero_divisible
maze: max_dist max_grid_size min_dist min_grid_size
mini_sudoku: max_empty min_empty
modulo_grid: max_divisor max_holes max_target size_x size_y
n_queens: max_remove min_remove n
needle_haystack: max_num_statements min_num_statements
number_filtering: max_decimals max_numbers max_value min_decimals min_numbers min_value
number_format: max_delta max_n max_num_candidates min_n min_num_candidates
number_sequence: max_complexity max_terms max_value min_terms min_value
number_sorting: max_decimals max_numbers max_value min_decimals min_numbers min_value
palindrome_generation: max_length min_length
palindrome_partitioning: max_string_len max_substring_palindrome_len min_string_len min_substring_palindrome_len
path_star: degree max_path_length min_path_length node_range reversed
polynomial_equations: max_degree max_terms max_value min_degree min_terms min_value
polynomial_multiplication: allow_cross_variable_product allow_multivariate_polynomials max_degree max_polynomials
  max_terms max_value min_degree min_polynomials min_terms min_value
pool_matrix: max_cols max_pool_size max_rows min_cols min_pool_size min_rows
power_function: max_base max_exponent min_base min_exponent
prime_factorization: max_value min_value
products: allow_negation max_digits max_terms min_digits min_terms
propositional_logic: max_complexity max_statements max_vars min_complexity min_statements min_vars
puzzle24: max_value min_value
quantum_lock: difficulty
ransom_note: max_magazine_length max_note_length min_magazine_length min_note_length p_solvable
rearc: diff_lb diff_ub max_examples min_examples
rectangle_count: height max_rectangles width
rotate_matrix: max_n max_rotations min_n min_rotations
rotten_oranges: max_n min_n p_oranges p_rotten
rubiks_cube: cube_size max_scramble_steps min_scramble_steps remove_ansi
rush_hour: max_moves min_moves
self_reference: difficulty
sentence_reordering: max_words_in_sentence min_words_in_sentence
shortest_path: max_cols max_rows min_cols min_rows p_blocked
simple_equations: max_terms max_value min_terms min_value
simple_geometry: max_angle max_sides min_angle min_sides
simple_integration: max_bounds max_degree max_terms min_bounds min_degree min_terms
sokoban: max_boxes max_depth max_h max_w min_boxes min_h min_w
spell_backward: data_file max_word_len min_word_len
spiral_matrix: max_n min_n
string_insertion: max_string_length min_string_length
string_manipulation: max_num_rules max_string_length min_num_rules min_string_length
string_splitting: max_initial_machines max_iterations min_initial_machines
string_synthesis: max_initial_blocks max_iterations min_initial_blocks
sudoku: max_empty min_empty
survo: max_board_size max_empty max_num min_board_size min_empty min_num
syllogism: allow_all allow_no allow_some allow_some_not invalid_ratio inversion_probability
time_intervals: max_date_difference_days max_time_difference_seconds
tower_of_hanoi: max_disks max_pegs min_disks min_pegs visualize
tsumego: max_board_size max_stones min_board_size
word_ladder: max_chain_length max_word_length min_chain_length min_word_length
word_sequence_reversal: max_words min_words
word_sorting: max_word_length max_words min_word_length min_words transformation
zebra_puzzles: num_characteristics num_people
"""


def _read(table: str) -> dict[str, tuple[str, ...]]:
    rows = (row.partition(":") for row in table.replace("\n  ", " ").splitlines())
    return {name: tuple(params.split()) for name, _, params in rows}


GYM_TASKS: Final[Mapping[str, tuple[str, ...]]] = _read(TABLE)
