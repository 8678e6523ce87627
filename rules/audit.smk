# The audit lane: the loaders of the lanes that train, run for a minute each; a run whose loader fails does not start.
from millrace.audit.inputs import AuditInputs

AUDIT = AuditInputs(config["audit"], {"asr": ASR, "music": MUSIC, "image": IMAGE}, LANES.on)
LANES.register_targets("audit", AUDIT.targets)


wildcard_constraints:
    lane=r"asr|music|image",
    run=r"[A-Za-z0-9._-]+",


# Targets for people


rule audit:
    """Audit of the loaders of all runs of the lanes that are switched on, with a page for each."""
    input:
        AUDIT.targets,
    localrule: True


# Jobs


rule audit_check_loader:
    """Run the loader of a run as it trains, and look for silent bugs; what it finds is judged later."""
    input:
        data=AUDIT.data,
    output:
        findings="results/audit/{lane}/{run}/findings.json",
    log:
        "logs/audit/check_loader/{lane}/{run}.log",
    benchmark:
        "benchmarks/audit/check_loader/{lane}/{run}.tsv"
    conda:
        "../envs/train.yaml"
    threads: 2
    resources:
        mem_mb=LANES.memory_mb(8000),
        runtime=LANES.runtime(15),
    params:
        environment=AUDIT.environment,
        loader=AUDIT.loader,
        timeout=LANES.flag("audit", "timeout"),
    message:
        "Audit the loader of the {wildcards.lane} run {wildcards.run}"
    shell:
        "{params.environment} python -m millrace.audit.check_loader {params.loader} {params.timeout} --exit-zero"
        " --json {output.findings:q} 2> {log:q}"


rule audit_verify_findings:
    """Show what the audit of a run's loader found, and let the run start unless audit.refuse names a fail."""
    input:
        findings=AUDIT.findings,
    output:
        accepted="results/audit/{lane}/{run}/accepted.json",
        page=report(
            "results/audit/{lane}/{run}/findings.html",
            caption="report/audit_findings.rst",
            category="Audit of loaders",
            labels={"lane": "{lane}", "run": "{run}"},
        ),
    log:
        "logs/audit/verify_findings/{lane}/{run}.log",
    benchmark:
        "benchmarks/audit/verify_findings/{lane}/{run}.tsv"
    localrule: True
    conda:
        "../envs/data.yaml"
    params:
        choices=AUDIT.choices,
    message:
        "Verify that the loader of the {wildcards.lane} run {wildcards.run} may train"
    shell:
        "python -m millrace.audit.verify_findings --findings={input.findings:q} {params.choices}"
        " --page {output.page:q} --accepted {output.accepted:q} 2> {log:q}"
