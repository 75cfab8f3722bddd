#!/bin/bash
# Train a recipe on two machines with SLURM: one torchrun per machine, one process per GPU.
#
#   sbatch examples/slurm.sh digits/mlp-gaussian-maxup --out runs/digits
#
# The same command resumes. So does SLURM itself if it preempts and requeues the job.
#SBATCH --job-name=maxup
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

# --signal: two minutes before the time is over, every process gets SIGTERM, saves a checkpoint and exits.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=${PORT:-$((20000 + SLURM_JOB_ID % 10000))}       # jobs that share a machine use different ports
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}          # OpenMP threads of several processes slow each other down
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1           # a restart must not connect to addresses of the killed workers

srun torchrun \
    --nnodes "$SLURM_NNODES" \
    --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" \
    --max-restarts 3 \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "${hosts[0]}:$port" \
    -m maxup train "$@"
