"""The paper's experiments, and some of our own: `python -m experiments.all`. What came out: README.md.

Each experiment is a module with `run(plan)`, which fills CSV files and draws pictures in experiments/results, and
`blocks(folder)`, which makes its tables of the page `PAGE` from those files alone. A row of a CSV file is one run; runs
that are there are not repeated. Benchmarks may import from here; nothing here imports benchmarks.
"""
