# Make `numbers_r.json`: metrics of `people.csv` and `people_with_ties.csv` by R packages, none of our own code.
#
# Run it in this folder: `Rscript make_numbers.R` (Debian: r-base-core r-cran-survival r-cran-cmprsk
# r-cran-riskregression r-cran-pec r-cran-jsonlite).

suppressPackageStartupMessages({
  library(survival)
  library(cmprsk)
  library(riskRegression)
  library(prodlim)
  library(pec)
  library(Hmisc)
  library(jsonlite)
})

cloglog <- function(p) log(-log(1 - p))

# Inverse probability of censoring weights at a horizon, from prodlim's reverse Kaplan-Meier.
censoring_weights <- function(people, horizon) {
  fitted <- prodlim(Hist(time, status != 0) ~ 1, data = people, reverse = TRUE)
  before <- predict(fitted, times = sort(unique(people$time)) - 1e-6)
  at_own <- before[match(people$time, sort(unique(people$time)))]
  followed <- people$time > horizon
  known <- followed | people$status != 0
  ifelse(followed, 1 / predict(fitted, times = horizon), ifelse(known, 1 / at_own, 0))
}

at_horizon <- function(people, horizon) {
  numbers <- list(horizon_days = horizon)
  n <- nrow(people)
  case <- people$status == 1 & people$time <= horizon

  # Aalen-Johansen with infinitesimal jackknife standard errors, and by cmprsk.
  people$state <- factor(people$status, 0:2, c("censored", "outcome", "death"))
  states <- summary(survfit(Surv(time, state) ~ 1, data = people, id = seq_len(n)), times = horizon)
  numbers$observed_risk <- states$pstate[, states$states == "outcome"]
  numbers$observed_risk_error <- states$std.err[, states$states == "outcome"]
  numbers$observed_risk_cmprsk <- timepoints(cuminc(people$time, people$status), horizon)$est["1 1", 1]

  # AUC, Brier score, null model: IPCW with competing risks, standard errors with estimated censoring.
  scored <- Score(
    list(risk = matrix(people$risk, ncol = 1)), formula = Hist(time, status) ~ 1, data = people, times = horizon,
    cause = 1, metrics = c("auc", "brier"), summary = "ipa", se.fit = TRUE, conservative = FALSE
  )
  auc <- scored$AUC$score
  brier <- scored$Brier$score
  numbers$auc <- auc$AUC
  numbers$auc_error <- auc$se
  numbers$brier <- brier[model == "risk"]$Brier
  numbers$brier_error <- brier[model == "risk"]$se
  numbers$null_brier <- brier[model == "Null model"]$Brier
  numbers$scaled_brier <- brier[model == "risk"]$IPA

  # Wolbers' concordance: death never gets the outcome; survival's own infinitesimal jackknife.
  recoded <- ifelse(people$status == 2 & people$time <= horizon, 10 * horizon, pmin(people$time, horizon))
  plain <- concordance(Surv(recoded, case) ~ people$risk, reverse = TRUE)
  numbers$concordance <- unname(plain$concordance)
  numbers$concordance_error <- sqrt(plain$var)
  weighted <- pec::cindex(
    list(risk = matrix(people$risk, ncol = 1)), formula = Hist(time, status) ~ 1, data = people, cause = 1,
    cens.model = "marginal", eval.times = horizon, pred.times = horizon, tiedPredictionsIn = TRUE,
    tiedOutcomeIn = FALSE, tiedMatchIn = FALSE, verbose = FALSE
  )
  numbers$concordance_ipcw <- unname(weighted$AppCindex$risk)

  # Calibration: weighted binomial regression with complementary log-log link; spline of Hmisc.
  weights <- censoring_weights(people, horizon)
  x <- cloglog(pmin(pmax(people$risk, 1e-6), 1 - 1e-6))
  exact <- glm.control(epsilon = 1e-14, maxit = 100)
  family <- quasibinomial(link = "cloglog")
  intercept <- glm(case ~ offset(x), family = family, weights = weights, control = exact)
  slope <- glm(case ~ x, family = family, weights = weights, control = exact)
  numbers$calibration_intercept <- unname(coef(intercept)[1])
  numbers$calibration_slope <- unname(coef(slope)[2])
  knots <- quantile(x, c(0.05, 0.35, 0.65, 0.95))
  spline <- rcspline.eval(x, knots = knots, inclx = TRUE)
  smooth <- glm(case ~ spline, family = family, weights = weights, control = exact)
  distance <- abs(as.vector(1 - exp(-exp(cbind(1, spline) %*% coef(smooth)))) - people$risk)
  numbers$ici <- mean(distance)
  numbers$e50 <- unname(quantile(distance, 0.5))
  numbers$e90 <- unname(quantile(distance, 0.9))
  numbers
}

of_file <- function(name) {
  people <- read.csv(name)
  horizons <- c(400, 1000, 1800)
  lapply(horizons, function(horizon) at_horizon(people, horizon))
}

packages <- c("survival", "cmprsk", "riskRegression", "prodlim", "pec", "Hmisc")
versions <- sapply(packages, function(name) as.character(packageVersion(name)))
numbers <- list(
  versions = as.list(c(R = paste(R.version$major, R.version$minor, sep = "."), versions)),
  people = of_file("people.csv"),
  people_with_ties = of_file("people_with_ties.csv")
)
write(toJSON(numbers, auto_unbox = TRUE, digits = 15, pretty = TRUE), "numbers_r.json")
