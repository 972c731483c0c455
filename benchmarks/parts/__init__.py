"""Does each part do what it says? What the commands of that heading of docs/benchmarks.md hold against each other."""
