#pragma once

#include <string>
#include <vector>

#include "sim/fabric/fabric_file.h"

namespace refit {

/// A file to import. What it is, is found from its content:
///
/// - node files: NCCL topology XML, `nvidia-smi topo -m` text, a fabric file of ours (its node);
/// - network files: `ibnetdiscover` (also -p) and `iblinkinfo` output, Slurm topology.conf.
struct ImportFile {
  std::string text, name;
};

/// What the files cannot say. A figure that is needed and missing is an error, never a guess.
struct ImportOptions {
  std::string name = "imported";
  // v100, a100, h100, h200, gh200, b200, gb200, b300, gb300: rate of a link that a file counts
  // ("NV18")
  std::string gpu = {};
  double nvlink = 0;  // port of a GPU to an NVSwitch, for node files that say nothing of NVLink
  double nic = 0;     // rate of the NICs whose file says none
  std::string cost = "nominal";
};

/// One fabric from all of them: network files name the hosts, node files say what a host is made of
/// (one file: all hosts; several: hosts without a network, or refused). Node files alone make one
/// kind of node on one switch. `notes` receives what was left out or assumed. Errors name file,
/// line, what was found and what was expected; a file of another kind is refused with the reason.
FabricFile import_fabric(const std::vector<ImportFile>& files, const ImportOptions& options,
                         std::vector<std::string>* notes = nullptr);

}  // namespace refit
