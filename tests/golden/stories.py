"""What the command line is asked, in stories: commands of one story run one after the other in one folder."""

_OMNI = "omni.parquet --ranks 16 --ranks-per-node 8 --batch-per-rank 16"
_SUM = "--length text_tokens+image_tokens+audio_tokens"
_ROLLOUTS = "rollouts.parquet --length tokens --ranks 8 --ranks-per-node 4 --batch-per-rank 32"
_LENGTHS = "lengths.csv --ranks 8 --ranks-per-node 2 --batch-per-rank 24"
_PHASES = (
    "--phase vision=image_patches --outputs vision=image_tokens --phase audio=audio_frames "
    "--outputs audio=audio_tokens --phase llm=text_tokens+image_tokens+audio_tokens --own llm=text_tokens"
)
_MODELS = (
    "--model vision=internvit-6b --pieces vision=1024 --model audio=whisper-large-v3-encoder --model llm=qwen2-72b "
    "--bytes vision=1176,16384 --bytes audio=256,16384 --bytes llm=4"
)
_PAGES = (
    "pages.parquet --ranks 16 --ranks-per-node 8 --batch-per-rank 16 "
    '--phase "vision=qwen2vl_patches(image_widths,image_heights)" '
    '--outputs "vision=qwen2vl_tokens(image_widths,image_heights)" --bytes vision=1176,8192 '
    "--phase llm=text_tokens+image_tokens --own llm=text_tokens --bytes llm=4"
)
_CLIPS = (
    "clips.jsonl --ranks 4 --ranks-per-node 2 --batch-per-rank 16 "
    '--phase "vision=lengths(images)" '
    '--phase "audio=lengths(clips)" --outputs "audio=lengths(put_out)" '
    '--phase llm=total --own "llm=lengths(segments)"'
)


def _planned(command):
    """A plan as a file and a document, and the report of it."""
    return [f"plan {command} --out plan.parquet --overwrite --json", "report plan.parquet --json"]


def _planned_each(log, *options):
    return [command for option in options for command in _planned(f"{log} {option}")]


def _both_ways(command):
    """A document, and what a person sees."""
    return [f"{command} --json", command]


ONE_PHASE = {
    "full log": _planned(f"{{data}}/omni_mix_dev.parquet --ranks 64 --ranks-per-node 8 --batch-per-rank 16 {_SUM}"),
    "one phase, as a person sees it": [
        f"plan {_OMNI} {_SUM} --out plan.parquet",
        "report plan.parquet",
        "report plan.parquet --log omni.parquet",
        f"plan {_ROLLOUTS} --micro-batch-tokens 6000 --over-long own --out plan.parquet --overwrite",
        "report plan.parquet",
        f"plan {_ROLLOUTS} --cap kv_blocks=1200 --keep-together prompt",
    ],
    "one phase, placements": _planned_each(
        f"{_OMNI} {_SUM}",
        "--placement relocate",
        "--placement rearrange",
        "--placement any",
        "--placement relocate --eps 0",
        "--eps 0.05 --home strided",
        "--home strided --placement rearrange --drop-last",
        "--method lpt",
        "--method karmarkar_karp --equal-counts",
        "--time-budget 0.001",
    ),
    "one phase, costs": _planned_each(
        _LENGTHS,
        "--cost quadratic:a=24576,b=1",
        "--cost padded",
        "--cost padded --equal-counts",
        "--cost convolution:a=24576,c=100",
        "--cost flops:qwen2-7b",
        "--cost padded --max-tokens-per-rank 60000",
    ),
    "one phase, constraints": _planned_each(
        _ROLLOUTS,
        "--equal-counts",
        "--max-tokens-per-rank 60000",
        "--equal-counts --max-tokens-per-rank 60000 --keep-together prompt",
        "--keep-together prompt",
        "--cap kv_blocks=1200",
        "--cap kv_blocks=1200 --cap text_tokens+image_patches=300000",
        "--allowed-ranks may_run_on",
        "--rank-speeds 1,2,3,4,4,3,2,1",
        "--initial-loads 0,500,1000,9000,0,0,20000,100",
        "--min-samples-per-rank 20",
        "--max-samples-per-rank 33 --placement rearrange",
        "--cap kv_blocks=1300 --keep-together prompt --min-samples-per-rank 5 --cost quadratic:a=24576,b=1",
    ),
    "one phase, micro-batches": _planned_each(
        _ROLLOUTS,
        "--micro-batch-tokens 10000",
        "--micro-batch-tokens 10000 --eps 0.05",
        "--micro-batch-tokens 10000 --sync step",
        "--micro-batch-tokens 10000 --sync pipeline --pipeline-stages 4 --micro-batches-multiple-of 2",
        "--micro-batch-tokens 10000 --micro-batches fewest --placement rearrange",
        "--micro-batch-tokens 12000 --micro-batches 7 --home strided",
        "--micro-batch-tokens 2500 --over-long own",
        "--micro-batch-tokens 90000 --min-micro-batches 40 --allow-empty-micro-batches",
        "--micro-batch-tokens 10000 --equal-counts --cap kv_blocks=1300",
        "--micro-batch-tokens 10000 --keep-together prompt --max-tokens-per-rank 70000",
        "--micro-batch-tokens 20000 --cost quadratic:a=24576,b=1 --sync step",
        "--micro-batch-tokens 20000 --cost padded --sync micro_batch",
    ),
    "one phase, one rank": [
        *_planned("lengths.csv --ranks 1 --batch-per-rank 100"),
        *_planned("lengths.csv --ranks 1 --batch-per-rank 100 --cost padded"),
        *_planned("lengths.csv --ranks 1 --batch-per-rank 100 --micro-batch-tokens 9000 --min-samples-per-rank 3"),
    ],
    "formats": [
        "plan lengths.npy --ranks 4 --batch-per-rank 16 --out parts/ --json",
        "report parts/ --json",
        "plan lengths.csv --ranks 4 --batch-per-rank 16 --json",
        "plan manifest.jsonl --ranks 4 --batch-per-rank 8 --home strided --cost flops:qwen2-7b --json",
    ],
}
"""Plans of one phase, and reports of them."""

SEVERAL_PHASES = {
    "several phases, as a person sees them": [
        f"plan {_OMNI} {_PHASES} --out plan.parquet",
        "report plan.parquet",
        f"plan {_CLIPS} --micro-batch-tokens 900 --over-long own --out plan.parquet --overwrite",
        "report plan.parquet",
        "plan clips.jsonl --ranks 4 --batch-per-rank 16 --phase vision=images_total --phase llm=row",
    ],
    "several phases": _planned_each(
        f"{_OMNI} {_PHASES}",
        "--bytes vision=1176,16384 --bytes audio=256,16384 --bytes llm=4",
        "--mode joint --placement rearrange",
        "--mode joint --placement any",
        "--group-size 8",
        "--group-size 4 --every-rank-nonempty vision --home strided",
        "--equal-counts vision --max-tokens-per-rank llm=30000 --eps 0.01",
        "--equal-counts --every-rank-nonempty audio --method lpt --drop-last",
        "--cost vision=quadratic:a=1000,b=1 --cost llm=flops:qwen2-7b",
        "--cost audio=convolution:a=24576,c=100 --cost vision=padded",
    ),
    "several phases, micro-batches": _planned_each(
        f"{_OMNI} {_PHASES} --micro-batch-tokens 16384 --over-long own",
        "--encoders slot",
        "--encoders step --mode joint",
        "--sync step --placement rearrange",
        "--sync pipeline --pipeline-stages 2 --micro-batches-multiple-of 2 --eps 0.05",
    ),
    "several items a sample": [
        *_planned(_PAGES),
        *_planned_each(_CLIPS, "", "--mode joint", "--group-size 2", "--micro-batch-tokens 900 --encoders step"),
        *_planned("clips.jsonl --ranks 4 --batch-per-rank 16 --phase llm=total"),
    ],
}
"""Plans of several phases, and reports of them."""

OTHERS = {
    "simulate": [
        *_both_ways(f"simulate {_OMNI} --cluster h100 --steps 4 --checkpointing {_PHASES} {_MODELS}"),
        f"simulate {_OMNI} --cluster a100 --steps 3 --micro-batch-tokens 16384 --over-long own --waits step "
        f"--overlap 0.5 --efficiency 0.4 {_PHASES} {_MODELS} --json",
        f"simulate {_OMNI} --cluster b200 --gpus-per-rank 2 --ranks-per-node 4 --steps 14 --strategies orchestrated "
        f"{_PHASES} {_MODELS}".replace("--ranks-per-node 8 ", ""),
    ],
    "fit": [
        *_both_ways("fit steps.csv"),
        "fit steps.csv --weights absolute --skip 2 --json",
        "fit noisy.csv",
        "fit noisy.csv --force --json",
        "fit lengths.csv",
        "fit nosuch.csv",
        "fit steps.csv --max-error 0",
    ],
    "help": ["--help", *(f"{command} --help" for command in ("plan", "report", "simulate", "fit"))],
    "refused, logs": [
        "plan nosuch.parquet --ranks 2 --batch-per-rank 2",
        "plan omni.parquet --ranks 2 --batch-per-rank 2",
        "plan omni.parquet --length tokens+nosuch --ranks 2 --batch-per-rank 2",
        "plan omni.parquet --length source --ranks 2 --batch-per-rank 2",
        "plan omni.parquet --length text_tokens+text_tokens --ranks 2 --batch-per-rank 2",
        "plan pages.parquet --length image_widths --ranks 2 --batch-per-rank 2",
        "plan odd.csv --length tokens --ranks 2 --batch-per-rank 2",
        "plan lengths.csv --ranks 64 --batch-per-rank 16 --drop-last",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --cost linear:a=99999999999999999",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --out lengths.csv",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --out nowhere/plan.parquet",
        "plan rollouts.parquet --length tokens --ranks 4 --batch-per-rank 8 --allowed-ranks may_run_on",
        "plan rollouts.parquet --length tokens --ranks 4 --batch-per-rank 8 --allowed-ranks prompt",
        "plan rollouts.parquet --length tokens --ranks 4 --batch-per-rank 8 --keep-together nosuch",
        "plan rollouts.parquet --length tokens --ranks 4 --batch-per-rank 8 --cap nosuch=5",
    ],
    "refused, options": [
        "plam",
        "plan lengths.csv --ranks 2",
        "plan lengths.csv --ranks 0 --batch-per-rank 2",
        "plan lengths.csv --ranks 2 --batch-per-rank 0",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --ranks 3",
        "plan lengths.csv --ranks 4 --ranks-per-node 3 --batch-per-rank 2",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --rnaks 3",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --method best",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --method lpt --cost padded",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --cost cubic",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --cost linear --cost padded",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --cost flops:llama-9",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --home random",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --placement near",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --eps nan",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --time-budget 0",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --max-tokens-per-rank llm=9",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --equal-counts=llm",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --cap tokens=0",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --cap tokens=9 --cap tokens=8",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --rank-speeds 1,x",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --rank-speeds 1,2,3",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --rank-speeds 0,1",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --sync step",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --micro-batch-tokens 99999 --sync never",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --micro-batch-tokens 99999 --micro-batches few",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --micro-batch-tokens 99999 --pipeline-stages 2",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --micro-batch-tokens 99999 --rank-speeds 1,2",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --micro-batch-tokens 99999 --method lpt",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --micro-batch-tokens 99999 --over-long cut",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --min-samples-per-rank 3 --max-samples-per-rank 2",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --group-size 2",
    ],
    "refused, no plan keeps to it": [
        f"plan {_LENGTHS} --max-tokens-per-rank 100",
        f"plan {_LENGTHS} --max-tokens-per-rank 12000",
        f"plan {_LENGTHS} --max-tokens-per-rank 12000 --equal-counts",
        f"plan {_LENGTHS} --max-tokens-per-rank 9000 --cost padded",
        f"plan {_LENGTHS} --max-samples-per-rank 10",
        f"plan {_LENGTHS} --min-samples-per-rank 30",
        f"plan {_LENGTHS} --micro-batch-tokens 3000",
        f"plan {_LENGTHS} --micro-batch-tokens 9000 --micro-batches 1",
        f"plan {_LENGTHS} --micro-batch-tokens 9000 --micro-batches 60",
        f"plan {_LENGTHS} --micro-batch-tokens 9000 --max-tokens-per-rank 9000",
        f"plan {_ROLLOUTS} --cap kv_blocks=500",
        f"plan {_ROLLOUTS} --cap kv_blocks=40 --keep-together prompt",
        f"plan {_ROLLOUTS} --allowed-ranks only_rank --max-samples-per-rank 100",
        f"plan {_OMNI} {_PHASES} --max-tokens-per-rank vision=5000",
        f"plan {_OMNI} {_PHASES} --max-tokens-per-rank 20000",
        f"plan {_OMNI} {_PHASES} --micro-batch-tokens 4000",
    ],
    "refused, phases": [
        f"plan {_OMNI} {_PHASES} {_SUM}",
        f"plan {_OMNI} {_PHASES} --keep-together source_row",
        f"plan {_OMNI} {_SUM} --outputs vision=image_tokens",
        f"plan {_OMNI} {_PHASES} --outputs speech=audio_tokens",
        f"plan {_OMNI} {_PHASES} --equal-counts=speech",
        f"plan {_OMNI} {_PHASES} --max-tokens-per-rank speech=9",
        f"plan {_OMNI} {_PHASES} --every-rank-nonempty speech",
        f"plan {_OMNI} {_PHASES} --cost speech=linear",
        f"plan {_OMNI} {_PHASES} --own audio=text_tokens",
        f"plan {_OMNI} {_PHASES} --mode together",
        f"plan {_OMNI} {_PHASES} --mode joint --equal-counts vision",
        f"plan {_OMNI} {_PHASES} --group-size 3",
        f"plan {_OMNI} {_PHASES} --group-size 4 --equal-counts",
        f"plan {_OMNI} {_PHASES} --group-size 4 --micro-batch-tokens 90000",
        f"plan {_OMNI} {_PHASES} --micro-batch-tokens 90000 --equal-counts",
        f"plan {_OMNI} {_PHASES} --bytes vision=x",
        f"plan {_OMNI} --phase vision=nosuch --phase llm=text_tokens",
        'plan clips.jsonl --ranks 4 --batch-per-rank 4 --phase a=total --phase "b=lengths(images)"',
        f'plan {_CLIPS} --outputs "vision=lengths(clips)"',
        'plan clips.jsonl --ranks 4 --batch-per-rank 4 --phase "a=qwen2vl_patches(images,clips)" --phase b=total',
        'plan clips.jsonl --ranks 4 --batch-per-rank 4 --phase "a=area(images)" --phase b=total',
        f"simulate {_OMNI} --cluster h100 {_PHASES} {_MODELS} --strategies best",
        f"simulate {_OMNI} --cluster h100 {_PHASES} {_MODELS} --steps 0",
        f"simulate {_OMNI} --cluster h900 {_PHASES} {_MODELS}",
        f"simulate {_OMNI} --cluster h100 {_PHASES} --model vision=internvit-6b",
        f"simulate {_OMNI} --cluster h100 {_PHASES} {_MODELS} --efficiency 2",
        f"simulate {_OMNI} --cluster h100 {_PHASES} {_MODELS} --overlap 2",
        f"simulate {_OMNI} --cluster h100 {_PHASES} {_MODELS} --throughput llm=nosuch.csv",
    ],
    "refused, reports": [
        "report nosuch.parquet",
        "report omni.parquet",
        "report .",
        "plan lengths.csv --ranks 4 --batch-per-rank 16 --out plan.parquet --json",
        "report plan.parquet --log omni.parquet",
        "report plan.parquet --page-step -1",
        f"plan {_CLIPS} --out phases.parquet --json",
        "report phases.parquet --log lengths.csv",
    ],
}
"""All other commands, help, and what is refused with which words."""
