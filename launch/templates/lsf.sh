#!/bin/bash
#BSUB -J <<name>>
#BSUB -W <<hh_mm>>
#BSUB -wa USR2
#BSUB -wt <<warning_minutes>>
#BSUB -o <<outputs>>/%J.out
<<directives>>
<<body>>
