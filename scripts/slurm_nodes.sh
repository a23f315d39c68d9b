#!/bin/sh
# One run on several machines as a SLURM job: sbatch --nodes=2 scripts/slurm_nodes.sh dataset.root=my_demos steps=100000
# One torchrun a machine starts a process a card. Ahead of the time limit SLURM sends USR1, torchrun passes it on, the run
# writes a checkpoint, and the job is put back in the queue, in which it finds its folder by its number.
#SBATCH --job-name=lerobot
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.out
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
folder="${LEROBOT_OUTPUT:-outputs/slurm}/$job"
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=150 # seconds for the checkpoint
srun torchrun --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="${LEROBOT_NPROC:-gpu}" --rdzv-backend=c10d \
    --rdzv-endpoint="$first:${LEROBOT_PORT:-29500}" --rdzv-id="$job" --signals-to-handle=SIGTERM,SIGINT,SIGUSR1 \
    -m lerobot.train resume=auto output_dir="$folder" "$@"
status=$?
# torchrun leaves with 1 where a process leaves with 75. After scancel this line is not reached.
if grep -qs '"state": "stopped"' "$folder/status.json"; then
    scontrol requeue "$job" && exit 0
fi
exit "$status"
