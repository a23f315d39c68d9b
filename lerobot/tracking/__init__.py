"""What a run reports, and where it goes: `metrics.jsonl`, the console, wandb."""
