#!/bin/sh
# One run as a SLURM job: sbatch [--partition=...] scripts/slurm.sh dataset.root=my_demos policy=act steps=100000
# Ahead of the time limit SLURM sends USR1, the run writes a checkpoint and leaves with 75, and the job is put back in
# the queue. It finds its folder, and in there its wandb run, by its own number, which a requeue keeps.
#SBATCH --job-name=lerobot
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus=1
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.out
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
srun lerobot-train resume=auto output_dir="${LEROBOT_OUTPUT:-outputs/slurm}/$job" "$@"
status=$?
# 75: stopped by a signal with a checkpoint; 138: by USR1 before the run could catch it. After scancel this line is not
# reached, as that ends the script too.
if [ "$status" -eq 75 ] || [ "$status" -eq 138 ]; then
    scontrol requeue "$job" && exit 0
fi
exit "$status"
