"""What does it cost? What the commands of that heading of docs/benchmarks.md fill, load and measure."""
