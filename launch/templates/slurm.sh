#!/bin/bash
#SBATCH --job-name=<<name>>
#SBATCH --time=<<hh_mm>>:00
#SBATCH --signal=B:USR2@<<warning>>
#SBATCH --comment="fleet:signal=B:USR2,app_time=<<warning_minutes>>"
#SBATCH --output=<<outputs>>/%j.out
#SBATCH --open-mode=append
<<directives>>
<<body>>
