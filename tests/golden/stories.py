"""What the command line is asked, in stories: commands of one story run one after the other in one folder."""

_OMNI = "omni.parquet --ranks 16 --ranks-per-node 8 --batch-per-rank 16"
_SUM = "--length text_tokens+image_tokens+audio_tokens"
_ROLLOUTS = "rollouts.parquet --length tokens --ranks 8 --ranks-per-node 4 --batch-per-rank 32"
_LENGTHS = "lengths.csv --ranks 8 --ranks-per-node 2 --batch-per-rank 24"
_PHASES = (
    "--set phase.vision.length=image_patches --set phase.vision.outputs=image_tokens "
    "--set phase.audio.length=audio_frames --set phase.audio.outputs=audio_tokens "
    "--set phase.llm.length=text_tokens+image_tokens+audio_tokens --set phase.llm.own=text_tokens"
)
_MODELS = (
    "--set phase.vision.model=internvit-6b --set phase.vision.pieces=1024 "
    "--set phase.audio.model=whisper-large-v3-encoder --set phase.llm.model=qwen2-72b "
    "--set phase.vision.bytes_in=1176 --set phase.vision.bytes_out=16384 "
    "--set phase.audio.bytes_in=256 --set phase.audio.bytes_out=16384 --set phase.llm.bytes_in=4"
)
_PAGES = (
    "pages.parquet --ranks 16 --ranks-per-node 8 --batch-per-rank 16 "
    "--set phase.vision.length=qwen2vl_patches(image_widths,image_heights) "
    "--set phase.vision.outputs=qwen2vl_tokens(image_widths,image_heights) "
    "--set phase.vision.bytes_in=1176 --set phase.vision.bytes_out=8192 "
    "--set phase.llm.length=text_tokens+image_tokens --set phase.llm.own=text_tokens --set phase.llm.bytes_in=4"
)
_CLIPS = (
    "clips.jsonl --ranks 4 --ranks-per-node 2 --batch-per-rank 16 "
    "--set phase.vision.length=images "
    "--set phase.audio.length=clips --set phase.audio.outputs=put_out "
    "--set phase.llm.length=total --set phase.llm.own=segments"
)


def _planned(command):
    """A plan as a file and a document, and the report of it."""
    return [f"plan {command} --out plan.parquet --overwrite --json", "report plan.parquet --json"]


def _planned_each(log, first, *options):
    """Plans as files and documents, the first with its report."""
    more = [f"plan {log} {option} --out plan.parquet --overwrite --json" for option in options]
    return [*_planned(f"{log} {first}"), *more]


def _both_ways(command):
    """A document, and what a person sees."""
    return [f"{command} --json", command]


ONE_PHASE = {
    "one phase, as a person sees it": [
        f"plan {_OMNI} {_SUM} --out plan.parquet",
        "report plan.parquet",
        "report plan.parquet --log omni.parquet",
        f"plan {_ROLLOUTS} --set cut.tokens=6000 --set cut.over_long=own --out plan.parquet --overwrite",
        "report plan.parquet",
        f"plan {_ROLLOUTS} --set phase.all.caps={{kv_blocks=1200}} --set phase.all.keep_together=prompt",
    ],
    "one phase, placements": _planned_each(
        f"{_OMNI} {_SUM}",
        "--set plan.placement=relocate",
        "--set plan.placement=relocate --set plan.eps=0",
        "--set plan.eps=0.05 --set home=strided",
        "--set home=strided --set plan.placement=rearrange --set drop_last=true",
        "--set plan.method=karmarkar_karp --set phase.all.equal_counts=true",
        "--set plan.time_budget=0.001",
    ),
    "one phase, costs": _planned_each(
        _LENGTHS,
        "--cost quadratic:a=24576,b=1",
        "--cost padded",
        "--cost convolution:a=24576,c=100",
        "--cost flops:qwen2-7b",
        "--cost padded --set phase.all.max_tokens_per_rank=60000",
    ),
    "one phase, constraints": _planned_each(
        _ROLLOUTS,
        "--set phase.all.equal_counts=true",
        "--set phase.all.equal_counts=true --set phase.all.max_tokens_per_rank=60000 "
        "--set phase.all.keep_together=prompt",
        "--set 'phase.all.caps={kv_blocks=1200, \"text_tokens+image_patches\"=300000}'",
        "--set phase.all.allowed_ranks=may_run_on",
        "--set phase.all.rank_speeds=[1,2,3,4,4,3,2,1]",
        "--set phase.all.initial_loads=[0,500,1000,9000,0,0,20000,100]",
        "--set phase.all.max_samples_per_rank=33 --set plan.placement=rearrange",
        "--set phase.all.caps={kv_blocks=1300} --set phase.all.keep_together=prompt "
        "--set phase.all.min_samples_per_rank=5 --cost quadratic:a=24576,b=1",
    ),
    "one phase, micro-batches": _planned_each(
        _ROLLOUTS,
        "--set cut.tokens=10000 --set cut.sync=step",
        "--set cut.tokens=10000 --set cut.sync=pipeline --set cut.pipeline_stages=4 --set cut.multiple_of=2",
        "--set cut.tokens=10000 --set cut.count=fewest --set plan.placement=rearrange",
        "--set cut.tokens=2500 --set cut.over_long=own",
        "--set cut.tokens=90000 --set cut.at_least=40 --set cut.allow_empty=true",
        "--set cut.tokens=10000 --set phase.all.equal_counts=true --set phase.all.caps={kv_blocks=1300}",
        "--set cut.tokens=20000 --cost padded --set cut.sync=micro_batch",
    ),
    "one phase, one rank": [
        *_planned("lengths.csv --ranks 1 --batch-per-rank 100"),
        *_planned(
            "lengths.csv --ranks 1 --batch-per-rank 100 --set cut.tokens=9000 --set phase.all.min_samples_per_rank=3"
        ),
    ],
    "formats": [
        "plan lengths.npy --ranks 4 --batch-per-rank 16 --out parts/ --json",
        "report parts/ --json",
        "plan lengths.csv --ranks 4 --batch-per-rank 16 --json",
        "plan manifest.jsonl --ranks 4 --batch-per-rank 8 --set home=strided --cost flops:qwen2-7b --json",
    ],
}
"""Plans of one phase, and reports of them."""

SEVERAL_PHASES = {
    "several phases, as a person sees them": [
        f"plan {_OMNI} {_PHASES} --out plan.parquet",
        "report plan.parquet",
        f"plan {_CLIPS} --set cut.tokens=900 --set cut.over_long=own --out plan.parquet --overwrite",
        "report plan.parquet",
        "plan clips.jsonl --ranks 4 --batch-per-rank 16 --set phase.vision.length=images_total "
        "--set phase.llm.length=row",
    ],
    "several phases": _planned_each(
        f"{_OMNI} {_PHASES}",
        "--set phase.vision.bytes_in=1176 --set phase.vision.bytes_out=16384 "
        "--set phase.audio.bytes_in=256 --set phase.audio.bytes_out=16384 --set phase.llm.bytes_in=4",
        "--set plan.mode=joint --set plan.placement=rearrange",
        "--set plan.group_size=4 --set phase.vision.every_rank_nonempty=true --set home=strided",
        "--set phase.vision.equal_counts=true --set phase.llm.max_tokens_per_rank=30000 --set plan.eps=0.01",
        "--set phase.llm.equal_counts=true --set phase.audio.every_rank_nonempty=true "
        "--set plan.method=lpt --set drop_last=true",
        "--set phase.vision.cost=quadratic:a=1000,b=1 --set phase.llm.cost=flops:qwen2-7b",
    ),
    "several phases, micro-batches": _planned_each(
        f"{_OMNI} {_PHASES} --set cut.tokens=16384 --set cut.over_long=own",
        "--set cut.encoders=step --set plan.mode=joint",
        "--set cut.sync=step --set plan.placement=rearrange",
        "--set cut.sync=pipeline --set cut.pipeline_stages=2 --set cut.multiple_of=2 --set plan.eps=0.05",
    ),
    "several items a sample": [
        *_planned(_PAGES),
        *_planned_each(
            _CLIPS,
            "",
            "--set plan.group_size=2",
            "--set cut.tokens=900 --set cut.encoders=step",
        ),
        *_planned("clips.jsonl --ranks 4 --batch-per-rank 16 --set phase.llm.length=total"),
    ],
}
"""Plans of several phases, and reports of them."""

OTHERS = {
    "simulate": [
        *_both_ways(f"simulate {_OMNI} --cluster h100 --steps 4 --checkpointing {_PHASES} {_MODELS}"),
        f"simulate {_OMNI} --cluster a100 --steps 3 --set cut.tokens=16384 --set cut.over_long=own --waits step "
        f"--overlap 0.5 --efficiency 0.4 {_PHASES} {_MODELS} --json",
        f"simulate {_OMNI} --cluster b200 --set gpus_per_rank=2 --ranks-per-node 4 --steps 14 "
        f"--strategies orchestrated "
        f"{_PHASES} {_MODELS}".replace("--ranks-per-node 8 ", ""),
    ],
    "fit": [
        *_both_ways("fit steps.csv"),
        "fit steps.csv --skip 2 --json",
        "fit noisy.csv",
        "fit noisy.csv --force --json",
        "fit lengths.csv",
        "fit nosuch.csv",
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
        "plan lengths.csv --ranks 64 --batch-per-rank 16 --set drop_last=true",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --cost linear:a=99999999999999999",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --out lengths.csv",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --out nowhere/plan.parquet",
        "plan rollouts.parquet --length tokens --ranks 4 --batch-per-rank 8 --set phase.all.allowed_ranks=may_run_on",
        "plan rollouts.parquet --length tokens --ranks 4 --batch-per-rank 8 --set phase.all.allowed_ranks=prompt",
        "plan rollouts.parquet --length tokens --ranks 4 --batch-per-rank 8 --set phase.all.keep_together=nosuch",
        "plan rollouts.parquet --length tokens --ranks 4 --batch-per-rank 8 --set phase.all.caps={nosuch=5}",
    ],
    "refused, options": [
        "plam",
        "plan lengths.csv --ranks 2",
        "plan lengths.csv --ranks 0 --batch-per-rank 2",
        "plan lengths.csv --ranks 2 --batch-per-rank 0",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --ranks 3",
        "plan lengths.csv --ranks 4 --ranks-per-node 3 --batch-per-rank 2",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --rnaks 3",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set plan.method=best",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set plan.method=lpt --cost padded",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --cost cubic",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --cost linear --cost padded",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --cost flops:llama-9",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set home=random",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set plan.placement=near",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set plan.eps=nan",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set plan.time_budget=0",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set phase.llm.max_tokens_per_rank=9",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set phase.llm.equal_counts=true",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set phase.all.caps={tokens=0}",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set phase.all.caps={tokens=9} --set phase.all.caps={tokens=8}",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set phase.all.rank_speeds=[1,x]",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set phase.all.rank_speeds=[1,2,3]",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set phase.all.rank_speeds=[0,1]",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set cut.sync=step",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set cut.tokens=99999 --set cut.sync=never",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set cut.tokens=99999 --set cut.count=few",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set cut.tokens=99999 --set cut.pipeline_stages=2",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set cut.tokens=99999 --set phase.all.rank_speeds=[1,2]",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set cut.tokens=99999 --set plan.method=lpt",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set cut.tokens=99999 --set cut.over_long=cut",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set phase.all.min_samples_per_rank=3 "
        "--set phase.all.max_samples_per_rank=2",
        "plan lengths.csv --ranks 2 --batch-per-rank 2 --set plan.group_size=2",
    ],
    "refused, no plan keeps to it": [
        f"plan {_LENGTHS} --set phase.all.max_tokens_per_rank=100",
        f"plan {_LENGTHS} --set phase.all.max_tokens_per_rank=12000",
        f"plan {_LENGTHS} --set phase.all.max_tokens_per_rank=12000 --set phase.all.equal_counts=true",
        f"plan {_LENGTHS} --set phase.all.max_tokens_per_rank=9000 --cost padded",
        f"plan {_LENGTHS} --set phase.all.max_samples_per_rank=10",
        f"plan {_LENGTHS} --set phase.all.min_samples_per_rank=30",
        f"plan {_LENGTHS} --set cut.tokens=3000",
        f"plan {_LENGTHS} --set cut.tokens=9000 --set cut.count=1",
        f"plan {_LENGTHS} --set cut.tokens=9000 --set cut.count=60",
        f"plan {_LENGTHS} --set cut.tokens=9000 --set phase.all.max_tokens_per_rank=9000",
        f"plan {_ROLLOUTS} --set phase.all.caps={{kv_blocks=500}}",
        f"plan {_ROLLOUTS} --set phase.all.caps={{kv_blocks=40}} --set phase.all.keep_together=prompt",
        f"plan {_ROLLOUTS} --set phase.all.allowed_ranks=only_rank --set phase.all.max_samples_per_rank=100",
        f"plan {_OMNI} {_PHASES} --set phase.vision.max_tokens_per_rank=5000",
        f"plan {_OMNI} {_PHASES} --set phase.llm.max_tokens_per_rank=20000",
        f"plan {_OMNI} {_PHASES} --set cut.tokens=4000",
    ],
    "refused, phases": [
        f"plan {_OMNI} {_PHASES} {_SUM}",
        f"plan {_OMNI} {_PHASES} --set phase.llm.keep_together=source_row",
        f"plan {_OMNI} {_SUM} --set phase.vision.outputs=image_tokens",
        f"plan {_OMNI} {_PHASES} --set phase.speech.outputs=audio_tokens",
        f"plan {_OMNI} {_PHASES} --set phase.speech.equal_counts=true",
        f"plan {_OMNI} {_PHASES} --set phase.speech.max_tokens_per_rank=9",
        f"plan {_OMNI} {_PHASES} --set phase.speech.every_rank_nonempty=true",
        f"plan {_OMNI} {_PHASES} --set phase.speech.cost=linear",
        f"plan {_OMNI} {_PHASES} --set phase.audio.own=text_tokens",
        f"plan {_OMNI} {_PHASES} --set plan.mode=together",
        f"plan {_OMNI} {_PHASES} --set plan.mode=joint --set phase.vision.equal_counts=true",
        f"plan {_OMNI} {_PHASES} --set plan.group_size=3",
        f"plan {_OMNI} {_PHASES} --set plan.group_size=4 --set phase.llm.equal_counts=true",
        f"plan {_OMNI} {_PHASES} --set plan.group_size=4 --set cut.tokens=90000",
        f"plan {_OMNI} {_PHASES} --set cut.tokens=90000 --set phase.llm.equal_counts=true",
        f"plan {_OMNI} {_PHASES} --set phase.vision.bytes_in=x",
        f"plan {_OMNI} --set phase.vision.length=nosuch --set phase.llm.length=text_tokens",
        "plan clips.jsonl --ranks 4 --batch-per-rank 4 --set phase.a.length=total --set phase.b.length=images",
        f"plan {_CLIPS} --set phase.vision.outputs=clips",
        "plan clips.jsonl --ranks 4 --batch-per-rank 4 --set phase.a.length=qwen2vl_patches(images,clips) "
        "--set phase.b.length=total",
        "plan clips.jsonl --ranks 4 --batch-per-rank 4 --set phase.a.length=area(images) --set phase.b.length=total",
        f"simulate {_OMNI} --cluster h100 {_PHASES} {_MODELS} --strategies best",
        f"simulate {_OMNI} --cluster h100 {_PHASES} {_MODELS} --steps 0",
        f"simulate {_OMNI} --cluster h900 {_PHASES} {_MODELS}",
        f"simulate {_OMNI} --cluster h100 {_PHASES} --set phase.vision.model=internvit-6b",
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
        f"plan {_CLIPS} --out phases.parquet --json",
        "report phases.parquet --log lengths.csv",
    ],
}
"""All other commands, help, and what is refused with which words."""
