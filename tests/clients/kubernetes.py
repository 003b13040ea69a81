"""What examples/ has for Kubernetes, without a cluster: the manifests by Kubernetes' schemas, and what they rely on by the server.

    python kubernetes.py SCRATCH      with kubernetes-validate, which brings the schemas, and kubeconform if it is on the path
"""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import yaml
from server import ROOT, Server

MANIFESTS = ["examples/kubernetes/serve.yaml", "examples/kubernetes/batches.yaml", "examples/getp/indexed-job.yaml"]
VERSIONS = ["1.30", "1.37"]


def check(what, true, why=""):
    print(("ok      " if true else "FAILED  ") + f"Kubernetes: {what}" + ("" if true else f": {why}"), flush=True)
    return true


def status(url):
    try:
        return urllib.request.urlopen(url, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, OSError):
        return None


def ask(url, text):
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=300))


def validated(path, scratch):
    """By the schemas of two versions; a name that is not in them is an error, and is seen to be one."""
    tool = pathlib.Path(sys.executable).parent / "kubernetes-validate"
    wrong = scratch / "wrong.yaml"
    wrong.write_text((ROOT / path).read_text().replace("restartPolicy:", "restartPolice:").replace("periodSeconds:", "periodSecond:"))
    fine = True
    for version in VERSIONS:
        run = lambda file: subprocess.run(
            [str(tool), "--strict", "--kubernetes-version", version, str(file)], capture_output=True, text=True
        )
        right, refused = run(ROOT / path), run(wrong)
        fine &= check(f"{path} fits the schemas of {version}", right.returncode == 0, (right.stdout + right.stderr)[-600:])
        fine &= check(f"{path} with a wrong name does not", refused.returncode != 0, refused.stdout[-300:])
    return fine


def conformed(path, scratch):
    """The same by kubeconform, another reader of these schemas. It takes schemas of one file each, and here there is no other
    place to have them from."""
    tool = shutil.which("kubeconform")
    if not tool:
        print(f"skipped: {path} by kubeconform, which is not here", flush=True)
        return True
    import kubernetes_validate

    wrong = scratch / "wrong.yaml"
    fine = True
    for version in VERSIONS:
        found = pathlib.Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
        found = next(found.glob(f"v{version}.*-local-strict"))
        alone = scratch / "schemas" / version
        alone.mkdir(parents=True, exist_ok=True)
        definitions = json.loads((found / "_definitions.json").read_text())
        for kind in ["deployment-apps", "statefulset-apps", "poddisruptionbudget-policy", "job-batch", "service"]:
            one = {**json.loads((found / f"{kind}-v1.json").read_text()), "$defs": definitions["$defs"]}
            del one["$id"]
            (alone / f"{kind}-v1.json").write_text(re.sub(r'"[^"]*_definitions.json#', '"#', json.dumps(one)))
        place = f"{alone}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
        run = lambda file: subprocess.run([tool, "-strict", "-summary", "-schema-location", place, str(file)], capture_output=True, text=True)
        right, refused = run(ROOT / path), run(wrong)
        fine &= check(f"{path} conforms to {version} (kubeconform)", right.returncode == 0 and "Invalid: 0, Errors: 0" in right.stdout, (right.stdout + right.stderr)[-600:])
        fine &= check(f"{path} with a wrong name does not", "additionalProperties" in refused.stdout or "additional properties" in refused.stdout, refused.stdout[-300:])
    return fine


def containers(path):
    for document in yaml.safe_load_all((ROOT / path).read_text()):
        pod = document.get("spec", {}).get("template", {}).get("spec")
        for container in (pod or {}).get("containers", []):
            yield document, pod, container


def contract(path, scratch):
    """The probes' path and the end, as the manifest has them, of a server with its flags."""
    document, pod, container = next(containers(path))
    drain = int(container["args"][container["args"].index("--drain") + 1])
    stop = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    fine = check(
        f"{path}: the grace period is longer than preStop and --drain", pod["terminationGracePeriodSeconds"] > drain + stop
    )
    # The model and the folder are others here, and so are the answers: slow ones.
    words = ["--replay" if word.startswith("/models") else word for word in container["args"]]
    words = [str(scratch / "store") if word == "/batches" else word for word in words]
    script = scratch / "slow.jsonl"
    quick = {"prompt": "quick", "text": "<|channel|>final<|message|>Quick.<|return|>"}
    slow = {"text": "<|channel|>final<|message|>" + "slow " * 20 + "<|return|>", "delay_ms": 100}
    script.write_text(json.dumps(quick) + "\n" + json.dumps(slow) + "\n")
    at = words.index("--replay") + 1
    server = Server(*words[:at], str(script), *words[at:])
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    with server:
        fine &= check(f"{path}: probes are 200 when the server answers", {status(server.url + probe) for probe in paths.values()} == {200})
        text = urllib.request.urlopen(server.url + "/metrics").read().decode()
        annotations = document["spec"]["template"]["metadata"].get("annotations", {})
        prefix = "vllm:" if "vllm:" in words else "gptoss_"
        wanted = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "time_to_first_token_seconds_bucket"]
        missing = [name for name in wanted if not re.search(rf"^{prefix}{name}\{{", text, re.M)]
        fine &= check(f"{path}: has the metrics that scale by load", not missing, missing)
        if annotations:
            fine &= check(f"{path}: metrics are where the annotation says", annotations["prometheus.io/path"] == "/metrics")
        # The first answer waits for what all grammars of the vocabulary need.
        ask(server.url, "quick")
        answered = []
        client = threading.Thread(target=lambda: answered.append(ask(server.url, "hi")))
        client.start()
        end = time.monotonic() + 30
        while not re.search(rf"^{prefix}num_requests_running\S* 1$", urllib.request.urlopen(server.url + "/metrics").read().decode(), re.M):
            assert time.monotonic() < end, "the request does not run"
            time.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 5
        while status(server.url + paths["readinessProbe"]) == 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        fine &= check(f"{path}: after SIGTERM it is not ready", status(server.url + paths["readinessProbe"]) == 503)
        client.join()
        fine &= check(f"{path}: what runs comes to its end", bool(answered) and answered[0]["choices"][0]["message"]["content"].count("slow") == 20)
        fine &= check(f"{path}: and the process ends with 0", server.process.wait(drain) == 0)
    return fine


def main(scratch):
    scratch.mkdir(parents=True, exist_ok=True)
    fine = [validated(path, scratch) and conformed(path, scratch) for path in MANIFESTS]
    fine += [contract(path, scratch) for path in MANIFESTS[:2]]
    return all(fine)


if __name__ == "__main__":
    sys.exit(0 if main(pathlib.Path(sys.argv[1])) else 1)
