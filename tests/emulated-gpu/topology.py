"""What the kernel driver would show below /sys/devices/virtual/kfd/kfd for one processor and one GPU. Sizes are of a
chip that was sold; clocks, ids and what nobody asks for are made up."""

import os

# Compute units, of which SIMDs each, their waves, arrays, LDS in KiB, version as the driver writes it, PCI device,
# chiplets. RDNA's driver counts SIMDs of 32 lanes, CDNA's of 16.
CHIPS = {
    "gfx90a": dict(units=104, simds=4, waves=8, arrays=8, lds=64, version=90010, device=0x740C, dies=1),
    "gfx942": dict(units=304, simds=4, waves=8, arrays=32, lds=64, version=90402, device=0x74A1, dies=8),
    "gfx950": dict(units=256, simds=4, waves=8, arrays=32, lds=160, version=90500, device=0x75A0, dies=8),
    "gfx1030": dict(units=80, simds=2, waves=16, arrays=8, lds=64, version=100300, device=0x73BF, dies=1),
    "gfx1100": dict(units=96, simds=2, waves=16, arrays=12, lds=64, version=110000, device=0x744C, dies=1),
    "gfx1151": dict(units=40, simds=2, waves=16, arrays=4, lds=64, version=110501, device=0x1586, dies=1),
    "gfx1201": dict(units=64, simds=2, waves=16, arrays=8, lds=64, version=120001, device=0x7550, dies=1),
}
CAPABILITY = {"gfx9": 739746432, "gfx1": 671588992}

PROCESSOR = dict(cpu_cores_count=2, mem_banks_count=1, io_links_count=1, max_engine_clk_ccompute=2000)
ABSENT = """cpu_cores_count simd_count mem_banks_count caches_count io_links_count p2p_links_count cpu_core_id_base
simd_id_base max_waves_per_simd lds_size_in_kb gds_size_in_kb num_gws wave_front_size array_count simd_arrays_per_engine
cu_per_simd_array simd_per_cu max_slots_scratch_cu gfx_target_version vendor_id device_id location_id domain
drm_render_minor hive_id num_sdma_engines num_sdma_xgmi_engines num_sdma_queues_per_engine num_cp_queues""".split()


def gpu(arch, units):
    chip, is_wide = CHIPS[arch], arch.startswith("gfx9")
    units = units or chip["units"]
    dies, engines = min(chip["dies"], units), 1 if is_wide else 2
    arrays = min(chip["arrays"], max(units // 2, 1))
    return dict(
        simd_count=units * chip["simds"], mem_banks_count=1, caches_count=2, io_links_count=1,
        simd_id_base=2147488032, max_waves_per_simd=chip["waves"], lds_size_in_kb=chip["lds"], num_gws=64,
        wave_front_size=64 if is_wide else 32, array_count=arrays, simd_arrays_per_engine=engines,
        cu_per_simd_array=-(-units // arrays), simd_per_cu=chip["simds"], max_slots_scratch_cu=32,
        gfx_target_version=chip["version"], vendor_id=0x1002, device_id=chip["device"], location_id=768,
        drm_render_minor=128, num_sdma_engines=2, num_sdma_queues_per_engine=6, num_cp_queues=8, num_xcc=dies,
        max_engine_clk_fcompute=2400, max_engine_clk_ccompute=2400, local_mem_size=0, fw_version=2140,
        sdma_fw_version=20, capability=CAPABILITY[arch[:4]], debug_prop=1495, unique_id=0x1234,
    )  # fmt: skip


def cache(level, kib):
    return dict(processor_id_low=2147488032, level=level, size=kib, cache_line_size=128, cache_lines_per_tag=1,
                association=0, latency=0, type=9, sibling_map=1)  # fmt: skip


def link(start, end):
    return dict(type=2, version_major=0, version_minor=0, node_from=start, node_to=end, weight=20, min_latency=0,
                max_latency=0, min_bandwidth=312, max_bandwidth=31504, recommended_transfer_size=0,
                flags=1)  # fmt: skip


def bank(heap, size, clock):
    return dict(heap_type=heap, size_in_bytes=size, flags=0, width=384, mem_clk_max=clock)


def write(folder, arch, memory_bytes, units=0):
    """`folder` becomes what /sys/devices/virtual/kfd is; `units` compute units, if not 0, instead of the chip's."""
    absent = dict.fromkeys(ABSENT, 0)
    files = {
        "generation_id": "2\n",
        "system_properties": dict(platform_oem=0, platform_id=0, platform_rev=0),
        "nodes/0/gpu_id": "0\n",
        "nodes/0/name": "\n",
        "nodes/0/properties": absent | PROCESSOR,
        "nodes/0/mem_banks/0/properties": bank(0, 16 << 30, 3200),
        "nodes/0/io_links/0/properties": link(0, 1),
        "nodes/1/gpu_id": f"{0x1234}\n",
        "nodes/1/name": f"{arch}\n",
        "nodes/1/properties": absent | gpu(arch, units),
        "nodes/1/mem_banks/0/properties": bank(1, memory_bytes, 1249),
        "nodes/1/io_links/0/properties": link(1, 0),
    } | {f"nodes/1/caches/{i}/properties": cache(level, kib) for i, level, kib in ((0, 1, 32), (1, 2, 6144))}
    for name, content in files.items():
        path = folder / "kfd/topology" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            content = "".join(f"{key} {value}\n" for key, value in content.items())
        if path.exists() and path.read_text() == content:
            continue
        # Another process may be reading them: a file is there as a whole or not at all.
        fresh = folder / f"{name.replace('/', '-')}.{os.getpid()}"
        fresh.write_text(content)
        fresh.replace(path)
