#include "sim/cost/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/units.h"
#include "sim/cost/nnls.h"

namespace refit {
namespace {

constexpr int kRounds = 40;              // of absolute values by squares; it converges in about ten
constexpr double kLeastResidual = 1e-6;  // bounds the weights
constexpr double kOutlierPart = 0.10;    // no outlier below this residual,
constexpr double kOutlierSpread = 4;     // or this many standard deviations
constexpr double kMadToDeviation = 1.4826;
constexpr double kMostAboveNominal = 1.02;

/// Places of the unknowns: start-up and seconds a byte of both classes, then a start-up of each
/// collective log.
class Unknowns {
 public:
  explicit Unknowns(std::span<const Sample> samples) {
    for (const Sample& sample : samples) {
      if (sample.collective >= 0) starts_.try_emplace(sample.collective, 4 + starts_.size());
    }
  }
  size_t count() const { return 4 + starts_.size(); }
  static size_t start_of(LinkKind kind) { return kind == LinkKind::kNvlink ? 0 : 2; }
  static size_t byte_of(LinkKind kind) { return start_of(kind) + 1; }
  size_t start_of(const Sample& sample) const {
    return sample.collective >= 0 ? starts_.at(sample.collective) : start_of(sample.kind);
  }

 private:
  std::map<int32_t, size_t> starts_;
};

double fitted_s(const Sample& sample, const Unknowns& unknowns, const std::vector<double>& x) {
  return x[unknowns.start_of(sample)] + sample.bytes * x[Unknowns::byte_of(sample.kind)];
}

double residual_of(const Sample& sample, const Unknowns& unknowns, const std::vector<double>& x) {
  return fitted_s(sample, unknowns, x) / sample.seconds - 1;
}

/// Least squares of weighted relative residuals; weight 0 leaves a sample out.
std::vector<double> fit(std::span<const Sample> samples, const Unknowns& unknowns,
                        const std::vector<double>& weights) {
  std::vector<std::vector<double>> rows;
  std::vector<double> wanted;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (weights[i] == 0) continue;
    std::vector<double> row(unknowns.count(), 0);
    const double scale = std::sqrt(weights[i]) / samples[i].seconds;
    row[unknowns.start_of(samples[i])] = scale;
    row[Unknowns::byte_of(samples[i].kind)] = scale * samples[i].bytes;
    rows.push_back(std::move(row));
    wanted.push_back(std::sqrt(weights[i]));
  }
  return solve_nnls(rows, wanted);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<bool> find_outliers(std::span<const Sample> samples, const Unknowns& unknowns) {
  std::vector<double> weights(samples.size(), 1), sizes(samples.size());
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<double> x = fit(samples, unknowns, weights);
    for (size_t i = 0; i < samples.size(); ++i) {
      sizes[i] = std::abs(residual_of(samples[i], unknowns, x));
      weights[i] = 1 / std::max(sizes[i], kLeastResidual);
    }
  }
  const double limit = std::max(kOutlierPart, kOutlierSpread * kMadToDeviation * median(sizes));
  std::vector<bool> outlier(samples.size());
  for (size_t i = 0; i < samples.size(); ++i) outlier[i] = sizes[i] > limit;
  return outlier;
}

const char* class_name(LinkKind kind) { return kind == LinkKind::kNvlink ? "nvlink" : "net"; }

/// The file of a place "file:line".
std::string file_of(const std::string& place) { return place.substr(0, place.rfind(':')); }

void add_residual(FitQuality& quality, double residual, bool outlier) {
  ++quality.points;
  if (outlier) {
    ++quality.outliers;
    return;
  }
  quality.rms += residual * residual;  // a sum until the end
  if (std::abs(residual) > std::abs(quality.worst)) quality.worst = residual;
}

/// Qualities by a name of each sample, in order of appearance.
template <typename NameOf>
std::vector<FitQuality> summarise(std::span<const Sample> samples, const std::vector<double>& rest,
                                  const std::vector<bool>& outlier, NameOf name_of) {
  std::vector<FitQuality> qualities;
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::string name = name_of(samples[i]);
    auto found = std::find_if(qualities.begin(), qualities.end(),
                              [&](const FitQuality& quality) { return quality.name == name; });
    if (found == qualities.end()) {
      qualities.emplace_back().name = name;
      found = qualities.end() - 1;
    }
    add_residual(*found, rest[i], outlier[i]);
  }
  for (FitQuality& quality : qualities) {
    const int64_t in = quality.points - quality.outliers;
    quality.rms = in > 0 ? std::sqrt(quality.rms / static_cast<double>(in)) : 0;
  }
  return qualities;
}

/// What the inliers say of a class.
struct Evidence {
  double nominal = 0;
  double least = 0, most = 0;        // bytes
  int64_t points = 0, messages = 0;  // all; those that are no collective
};

void set_class(const Evidence& evidence, double start, double byte_s, LinkKind kind, LinkCost& link,
               bool& rate_fitted, bool& start_fitted) {
  if (evidence.points == 0) return;
  const std::string place = fmt::format("calibration, {}", class_name(kind));
  if (evidence.points < 3 || !(evidence.most > evidence.least))
    fail(place, fmt::format("{} points of one class", evidence.points),
         "three or more, of several sizes");
  if (!(byte_s > 0)) fail(place, "times that do not grow with the size", "larger sizes");
  const double efficiency = 1 / (byte_s * evidence.nominal);
  if (efficiency > kMostAboveNominal)
    fail(place, print_rate(1 / byte_s),
         fmt::format("at most the fabric's nominal {}", print_rate(evidence.nominal)));
  link.efficiency = std::min(1.0, efficiency);
  rate_fitted = true;
  if (evidence.messages == 0) return;
  link.message_start = std::min(link.message_start, start);
  link.step_start = start - link.message_start;
  start_fitted = true;
}

}  // namespace

Calibration calibrate(std::span<const Sample> samples, const CostModel& base,
                      const std::string& name) {
  if (samples.empty()) fail("calibration", "no measurement", "at least three");
  const Unknowns unknowns(samples);
  const std::vector<bool> outlier = find_outliers(samples, unknowns);
  std::vector<double> weights(samples.size());
  for (size_t i = 0; i < samples.size(); ++i) weights[i] = outlier[i] ? 0 : 1;
  const std::vector<double> x = fit(samples, unknowns, weights);

  Calibration result;
  result.cost = base;
  result.cost.name = name;
  result.cost.nccl = {};  // what channels do is in the measured times
  std::vector<double> residuals(samples.size());
  Evidence nvlink, net;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Sample& sample = samples[i];
    residuals[i] = residual_of(sample, unknowns, x);
    if (outlier[i]) {
      result.outliers.push_back({sample, fitted_s(sample, unknowns, x)});
      continue;
    }
    Evidence& evidence = sample.kind == LinkKind::kNvlink ? nvlink : net;
    evidence.nominal = sample.nominal;
    evidence.least = evidence.points == 0 ? sample.bytes : std::min(evidence.least, sample.bytes);
    evidence.most = std::max(evidence.most, sample.bytes);
    ++evidence.points;
    if (sample.collective < 0) ++evidence.messages;
  }
  set_class(nvlink, x[0], x[1], LinkKind::kNvlink, result.cost.nvlink, result.nvlink_rate,
            result.nvlink_start);
  set_class(net, x[2], x[3], LinkKind::kNic, result.cost.net, result.net_rate, result.net_start);
  result.classes = summarise(samples, residuals, outlier,
                             [](const Sample& s) { return std::string(class_name(s.kind)); });
  result.files =
      summarise(samples, residuals, outlier, [](const Sample& s) { return file_of(s.place); });
  return result;
}

std::string print_calibration(const Calibration& calibration, const CostModel& base) {
  std::string head =
      "Written by refit calibrate. A fit is one of relative residuals. What NCCL's channels do "
      "is\nin the measured times, so there is no nccl block.\n";
  for (const FitQuality& file : calibration.files)
    head += fmt::format("{}: {} points, {} outliers, rms {:.1f} %\n", file.name, file.points,
                        file.outliers, 100 * file.rms);
  const std::string kept = "kept from " + base.name;
  const auto source = [&](bool fitted, const char* name) {
    if (!fitted) return kept;
    for (const FitQuality& quality : calibration.classes) {
      if (quality.name == name)
        return fmt::format("fit of {} points, rms {:.1f} %", quality.points - quality.outliers,
                           100 * quality.rms);
    }
    return kept;
  };
  const CostNotes comments{.head = head,
                           .nvlink_rate = source(calibration.nvlink_rate, "nvlink"),
                           .nvlink_start = source(calibration.nvlink_start, "nvlink"),
                           .net_rate = source(calibration.net_rate, "net"),
                           .net_start = source(calibration.net_start, "net"),
                           .rest = kept};
  return print_cost(calibration.cost, comments);
}

}  // namespace refit
